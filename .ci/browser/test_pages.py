"""Pages of `veilgrad` in headless Chromium. `run` says how to start them."""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request
from base64 import b64decode
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

COMMAND = os.environ["VEILGRAD_COMMAND"]
SCREENSHOTS = os.environ.get("VEILGRAD_SCREENSHOTS")
# The widths of a desktop and of a small phone.
VIEWS = [(width, scheme) for width in (1280, 360) for scheme in ("light", "dark")]

CONFIG = """
[data]
train = "train.csv"
test = "test.csv"
dataset = "visits"
label = "class"
classes = ["stays", "comes back"]
records = 400
[[data.columns]]
name = "x"
bounds = [0, 1]
[[data.columns]]
name = "y"
bounds = [0, 1]
[model]
kind = "linear"
[privacy]
epsilon = 2.0
delta = 1e-5
expected_batch = 100
[[privacy.groups]]
vectors = ["accuracy"]
clip = 1.0
share = 0.05
[[privacy.groups]]
vectors = ["classes"]
clip = 1.0
share = 0.05
[train]
rounds = 40
optimizer = { kind = "sgd", lr = 2.0, momentum = 0.5 }
"""


def veilgrad(*words):
    found = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def examples(rows):
    lines = ["x,y,class"]
    for i in range(rows):
        x, y = i * 37 % 101 / 101, i * 53 % 97 / 97
        lines.append(f"{x},{y},{'stays' if x > y else 'comes back'}")
    return "\n".join(lines) + "\n"


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.held = tempfile.TemporaryDirectory()
        here = cls.here = Path(cls.held.name)
        (here / "train.csv").write_text(examples(400))
        (here / "test.csv").write_text(examples(150))
        (here / "config.toml").write_text(CONFIG)
        ledger = here / "ledger.db"
        veilgrad("budget", "create", "visits", "--epsilon", 4, "--delta", "1e-5", "--ledger", ledger)
        for name, epsilon in (("small", 1), ("large", 2)):
            veilgrad("train", here / "config.toml", "--epsilon", epsilon, "--out", here / "runs" / name, "--ledger", ledger, "-q")
        model = here / "runs/large/model.safetensors"
        veilgrad("evaluate", model, here / "test.csv", "--html", here / "evaluation.html")
        veilgrad("compare", here / "runs/small", here / "runs/large", "--html", here / "comparison.html")
        veilgrad("plan", "--records", 60000, "--batch", 1024, "--steps", 1000, "--delta", "1e-5", "--epsilon", 3, "--html", here / "plan.html")
        cls.server = subprocess.Popen([COMMAND, "serve", here, "--json", "-q"], stdout=subprocess.PIPE, text=True)
        cls.url = json.loads(cls.server.stdout.readline())["url"]
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
        cls.browser = webdriver.Chrome(options=options, service=service)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.server.send_signal(signal.SIGINT)
        assert cls.server.wait(timeout=10) == 0
        cls.server.stdout.close()
        cls.held.cleanup()

    def open(self, url, width=1280, scheme="light"):
        cdp, size = self.browser.execute_cdp_cmd, {"width": width, "height": 800}
        cdp("Emulation.setDeviceMetricsOverride", {**size, "deviceScaleFactor": 1, "mobile": width < 600})
        cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.browser.get("about:blank")
        self.browser.get_log("browser")
        self.browser.get(url)

    def planner(self, width=1280, scheme="light"):
        self.open(self.url, width, scheme)
        self.wait(lambda: len(self.all("#charts svg")) == 3 and self.all("#ledger-rows tr"))

    def wait(self, condition):
        return WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: condition())

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.one(selector).text

    def value(self, name):
        return float(self.one("#" + name).get_property("value"))

    def run_script(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def enter(self, name, value):
        """Types into a field, and waits for the answer."""
        before = self.text("#status")
        field = self.one("#" + name)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(value)
        self.wait(lambda: self.text("#status") != before)

    def check(self, name, width, scheme):
        """What holds for every page in every view; and a picture of it."""
        overflow = self.run_script("return document.documentElement.scrollWidth - innerWidth")
        self.assertLessEqual(overflow, 0, f"{name} is wider than {width}")
        self.assertEqual(self.browser.get_log("browser"), [], name)
        self.assertEqual(len(self.all("h1")), 1)
        self.assertEqual(self.one("html").get_attribute("lang"), "en")
        self.assertTrue(self.browser.title)
        for drawn in self.all("svg"):
            self.assertEqual(drawn.get_attribute("role"), "img")
            self.assertTrue(drawn.get_attribute("aria-label"), name)
        background = self.run_script("return getComputedStyle(document.body).backgroundColor")
        self.assertEqual(background, "rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
        for words, ratio in self.run_script(CONTRAST):
            self.assertGreaterEqual(ratio, 4.5, f"{name}, {scheme}: {words!r}")
        if SCREENSHOTS:
            picture = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            (Path(SCREENSHOTS) / f"{name}-{width}-{scheme}.png").write_bytes(b64decode(picture["data"]))

    def test_every_page_fits_every_view(self):
        files = {"report": "runs/large/report.html", "comparison": "comparison.html", "evaluation": "evaluation.html", "plan": "plan.html"}
        for width, scheme in VIEWS:
            with self.subTest(width=width, scheme=scheme):
                self.planner(width, scheme)
                self.check("planner", width, scheme)
                for name, path in files.items():
                    self.open((self.here / path).as_uri(), width, scheme)
                    self.check(name, width, scheme)

    def test_the_page_has_the_numbers_of_the_command(self):
        self.planner()
        self.enter("epsilon", "1.5")
        self.enter("steps", "2000")
        found = json.loads(veilgrad("plan", "--records", 60000, "--batch", 1024, "--steps", 2000, "--delta", "1e-5", "--epsilon", 1.5, "--json"))
        noise = found["noise_multiplier"]
        self.assertGreaterEqual(self.value("noise"), noise)
        self.assertAlmostEqual(self.value("noise"), noise, delta=1e-3)
        # The other way round: the noise is given, and epsilon follows.
        self.one("input[value=epsilon]").click()
        self.wait(lambda: "epsilon, at delta 1e‑5 (solved)" in self.text("#cards"))
        self.assertLessEqual(self.value("epsilon"), 1.5)
        self.assertGreater(self.value("epsilon"), 1.49)
        self.assertIn("noise_multiplier = ", self.one("#toml").text)
        self.assertIn("of 100 that are in it are named", self.text("#words"))
        for about in ("clip norm", "learning rate"):
            self.assertIn(about, self.text("#notes-list"))
            self.assertIn(f"<li><b>{about}</b>: ", (self.here / "plan.html").read_text())
        # Rounds, and the batch.
        for solved, name, card in (("steps", "steps", "rounds (solved)"), ("rate", "batch", "batch, of 60000 records (solved)")):
            given = {field: self.one("#" + field).get_property("value") for field in ("batch", "steps", "noise", "epsilon", "delta")}
            self.one(f"input[value={solved}]").click()
            # The answer to this question, not to the one before.
            self.wait(lambda: card in self.browser.execute_script(CARDS))
            self.assertTrue(self.one("#" + name).get_property("readOnly"))
            self.assertNotIn("No answer", self.text("#status"))
            words = ["--records", 60000, "--delta", given["delta"], "--epsilon", given["epsilon"], "--noise-multiplier", given["noise"]]
            words += ["--batch", given["batch"]] if solved == "steps" else ["--steps", given["steps"]]
            found = json.loads(veilgrad("plan", *words, "--solve", solved, "--json"))
            expected = found["steps"] if solved == "steps" else found["rate"] * 60000
            self.assertAlmostEqual(self.value(name), expected, delta=1e-3 * expected)

    def test_a_question_without_answer_says_why(self):
        self.planner()
        self.enter("batch", "70000")
        self.assertIn("batch 70000 is larger than the number of records, 60000", self.text("#status"))
        self.wait(lambda: not self.all("#charts svg"))
        self.enter("batch", "600")
        self.assertNotIn("No answer", self.text("#status"))

    def test_the_configuration_can_be_trained_with(self):
        self.planner()
        self.enter("records", "400")
        self.enter("batch", "100")
        self.enter("steps", "5")
        self.wait(lambda: "records = 400" in self.one("#toml").text and "rounds = 5" in self.one("#toml").text)
        toml = self.one("#toml").text
        head, rest = CONFIG.split("records = 400", 1)
        columns, rest = rest.split("[privacy]", 1)
        planned, privacy = toml.split("[privacy]", 1)
        privacy, train = privacy.split("[train]", 1)
        optimizer = [line for line in rest.splitlines() if line.startswith("optimizer")][0]
        config = head + planned.replace("[data]", "") + columns + "[privacy]" + privacy + "[train]" + train + "\n" + optimizer
        (self.here / "planned.toml").write_text(config)
        self.assertIn("nothing is wrong", veilgrad("check", self.here / "planned.toml"))
        self.assertEqual(self.text("#command"), "veilgrad train CONFIG.toml")
        # A plan that no run has says why, and shows nothing to copy.
        self.one("#sampling option[value=truncated]").click()
        self.wait(lambda: "private under add-remove" in self.text("#untrainable"))
        self.assertFalse(self.one("#trainable").is_displayed())
        self.one("#adjacency option[value=replace-one]").click()
        self.wait(lambda: "max_batch = " in self.text("#toml"))
        self.assertFalse(self.one("#untrainable").is_displayed())

    def test_the_keyboard_reaches_and_moves_everything(self):
        self.planner()
        seen = []
        for _ in range(40):
            self.browser.switch_to.active_element.send_keys(Keys.TAB)
            active = self.browser.switch_to.active_element
            seen.append(active.get_attribute("id") or active.get_attribute("class") or active.get_attribute("name"))
            outline = self.run_script("const s = getComputedStyle(arguments[0]); return s.outlineStyle + s.outlineWidth", active)
            self.assertTrue(active.tag_name == "body" or outline == "solid3px", f"{seen[-1]}: {outline}")
            if active.tag_name == "a" and active.get_attribute("href").count("/report/"):
                break
        names = ["records", "batch", "steps", "epsilon", "delta"]
        for name in ["skip", "solve", *names, *(name + "-slider" for name in names), "noise", "sampling", "adjacency", "copy"]:
            self.assertIn(name, seen)
        # Arrow keys move a slider, and the result follows; they choose what is solved for, too.
        before, noise = self.value("epsilon"), self.value("noise")
        for _ in range(50):
            self.one("#epsilon-slider").send_keys(Keys.ARROW_RIGHT)
        self.wait(lambda: self.value("noise") < noise)
        self.assertGreater(self.value("epsilon"), before)
        self.one("input[value=noise]").send_keys(Keys.ARROW_RIGHT)
        self.wait(lambda: self.one("#epsilon").get_property("readOnly"))
        self.one("#copy").send_keys(Keys.ENTER)
        self.wait(lambda: self.text("#copied"))

    def test_screen_readers_have_a_name_for_everything(self):
        self.planner()
        nodes = self.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        found = {}
        for node in nodes:
            if not node.get("ignored"):
                name = node.get("name", {}).get("value", "").strip()
                found.setdefault(node["role"]["value"], []).append(name)
        for role in ("spinbutton", "slider", "radio", "combobox", "button", "link", "image", "region", "form"):
            self.assertTrue(found.get(role), f"{role}: {sorted(found)}")
            self.assertTrue(all(found[role]), f"{role}: {found[role]}")
        self.assertIn("Epsilon smaller protects more", found["spinbutton"])
        self.assertEqual(len(set(found["slider"])), 6)
        self.assertEqual(self.one("#status").get_attribute("aria-live"), "polite")
        values = [slider.get_attribute("aria-valuetext") for slider in self.all("input[type=range]")]
        self.assertEqual(values[:2], ["60000", "1024"])
        levels = self.run_script("return [...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
        self.assertTrue(all(b - a <= 1 for a, b in zip(levels, levels[1:])), levels)

    def test_files_of_the_directory_are_listed_and_reports_open(self):
        self.planner()
        names = [link.text for link in self.all("#report-list a")]
        self.assertEqual(names, ["runs/large/report.json", "runs/small/report.json"])
        row = self.text("#ledger-rows tr")
        self.assertIn("ledger.db", row)
        self.assertIn("visits", row)
        self.one("#report-list a").click()
        self.wait(lambda: "Privacy report: visits" in self.browser.title)
        for words in ("What an attacker can learn", "Private estimates", "SHA-256 of the model", "±", "Configuration"):
            self.assertIn(words, self.text("body"))
        self.check("served-report", 1280, "light")

    def test_nothing_is_loaded_from_elsewhere_and_others_are_refused(self):
        self.planner()
        loaded = self.run_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertTrue(loaded and all(name.startswith(self.url) for name in loaded), loaded)
        times = self.run_script(
            "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/plan?')).map((e) => e.duration)")
        self.assertTrue(times)

        def status(url, method="GET", headers=None):
            request = urllib.request.Request(url, method=method, headers=headers or {})
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, answer.headers
            except urllib.error.HTTPError as error:
                return error.code, error.headers

        root = self.url.split("/", 3)
        base = "/".join(root[:3])
        code, headers = status(self.url)
        self.assertEqual(code, 200)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(headers["Cache-Control"], "no-store")
        self.assertEqual(status(base + "/")[0], 403)
        self.assertEqual(status(base + "/" + "0" * 64 + "/")[0], 403)
        self.assertEqual(status(self.url, headers={"Host": "evil.example"})[0], 421)
        self.assertEqual(status(self.url, method="POST")[0], 405)
        for path in ("ledger.db", "../train.csv", "report/../../train.csv", "report/%2e%2e%2ftrain.csv", "ledger/" + "0" * 64):
            self.assertEqual(status(self.url + path)[0], 404, path)

    def test_every_question_is_answered_and_the_times_are_printed(self):
        self.planner()
        answers = self.run_async(TIMES)
        times = [answer["time"] for answer in answers]
        print(f"\na plan in the browser: median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms of {len(times)}")
        # Times depend on the machine; that every question was answered does not.
        self.assertEqual(len(answers), 40)
        for answer in answers:
            self.assertEqual(answer["status"], 200)
            self.assertIsNone(answer["reason"])
            self.assertGreater(answer["epsilon"], 0)
            self.assertGreater(answer["noise"], 0)

    def run_async(self, script):
        self.browser.set_script_timeout(120)
        return self.browser.execute_async_script(script)


# Contrast of every visible text with the nearest opaque background, as WCAG 2 defines it.
CONTRAST = """
const parse = (text) => text.match(/[0-9.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const found = [];
for (const e of document.querySelectorAll("p,h1,h2,h3,b,span,small,label,legend,th,td,li,a,figcaption,pre,code,button,input,select")) {
  // What is in a field is its value, not a text below it.
  const typed = e.matches("select,input:not([type=range],[type=radio])") ? e.value : "";
  const own = typed || [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.className === "skip") continue;
  let behind = e, colour = [0, 0, 0, 0];
  for (; behind; behind = behind.parentElement) {
    colour = parse(getComputedStyle(behind).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) break;
  }
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind ? colour : [255, 255, 255])];
  found.push([(typed || e.textContent.trim()).slice(0, 40), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
}
return found;
"""

CARDS = "return Array.from(document.querySelectorAll('#cards span'), (card) => card.innerText)"

# Ten questions each for epsilon, noise, rounds and batch, one after the other, as the page asks them.
TIMES = """
const done = arguments[arguments.length - 1];
(async () => {
  const times = [];
  for (let i = 0; i < 40; i++) {
    const [batch, steps] = ["&batch=" + (256 + 64 * i), "&steps=1000"];
    const [epsilon, noise] = ["&epsilon=" + (0.5 + i / 10), "&noise-multiplier=" + (1 + i / 20)];
    const asked = [
      "solve=epsilon" + batch + steps + noise,
      "solve=noise" + batch + steps + epsilon,
      "solve=steps" + batch + noise + epsilon,
      "solve=rate" + steps + noise + epsilon,
    ][i % 4];
    const start = performance.now();
    const answer = await fetch("plan?records=60000&delta=1e-5&" + asked);
    const { plan, reason } = await answer.json();
    const time = performance.now() - start;
    times.push({ time, status: answer.status, reason, epsilon: plan.epsilon, noise: plan.noise_multiplier });
  }
  done(times);
})();
"""

if __name__ == "__main__":
    unittest.main()
