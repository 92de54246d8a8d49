"""The same numbers as the command line, bit for bit, and curves that are what they say."""

import json
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import veilgrad
from veilgrad import Round, _native

REPOSITORY = Path(__file__).parents[3]
ADJACENCIES = {"add_remove": "add-remove", "replace_one": "replace-one", "replace_one_poisson": "replace-one"}


def command(capfd, *words):
    """The document that a command prints."""
    code = _native.command(["veilgrad", *map(str, words), "--json"])
    out = capfd.readouterr().out
    return code, json.loads(out) if out else None


def oracle_cases():
    oracles = json.loads((REPOSITORY / "crates/veilgrad-accounting/tests/oracles.json").read_text())
    for case in oracles["cases"]:
        rounds = []
        for item in case["items"]:
            q, z, steps = item.get("q", 1.0), item["z"], int(item["steps"])
            rounds.append(Round.poisson(q, z, steps) if q < 1 else Round.all(z, steps))
        adjacency = ADJACENCIES[case.get("adjacency", "add_remove")]
        yield pytest.param(rounds, adjacency, case["delta"], id=case["id"])
        yield pytest.param(rounds, "zero-out", case["delta"], id=f"{case['id']}-zero-out")
    for place, case in enumerate(oracles["wor_fixed_size_rdp_replace_one"]):
        z = 2 * case["z_in_units_of_replace_one_sensitivity"]
        rounds = [Round.fixed(case["n"], case["batch"], z, case["steps"])]
        yield pytest.param(rounds, "replace-one", case["delta"], id=f"fixed-{place}")
        yield pytest.param(rounds, "zero-out", case["delta"], id=f"fixed-{place}-zero-out")
    for place, case in enumerate(oracles["nested_groups"]):
        queries = [
            {"group": str(i), "clip": clip, "noise": noise}
            for i, (clip, noise) in enumerate(case["groups_S_sigma"])
        ]
        rounds = [Round({"policy": "poisson", "rate": case["q"]}, queries, case["steps"])]
        yield pytest.param(rounds, "add-remove", case["delta"], id=f"groups-{place}")
    for place, case in enumerate(oracles["truncated_poisson"]):
        sampling = {
            "policy": "truncated-poisson",
            "rate": case["q"],
            "records": case["dataset_size"],
            "maximum": case["max_batch"],
        }
        queries = [{"group": "g", "clip": 1.0, "noise": case["z"]}]
        rounds = [Round(sampling, queries, case["steps"])]
        yield pytest.param(rounds, "replace-one", case["delta"], id=f"truncated-{place}")


def conformance_cases():
    cases = json.loads((REPOSITORY / "conformance/cases.json").read_text())["cases"]
    for case in cases:
        inputs = case["inputs"]
        if case["kind"] == "statement":
            # TensorFlow Privacy's statement has an epsilon for epochs over all records, and one for Poisson samples.
            q, z = inputs["batch"] / inputs["n"], inputs["z"] / (2 if inputs["microbatching"] else 1)
            both = [Round.all(z, math.ceil(inputs["epochs"])), Round.poisson(q, z, math.ceil(inputs["epochs"] / q))]
            for rounds, name in zip(both, ("all", "poisson"), strict=True):
                yield pytest.param([rounds], "add-remove", inputs["delta"], id=f"{case['name']}-{name}")
        if case["kind"] != "accountant":
            continue
        q = inputs.get("q") or (inputs["batch"] / inputs["n"] if "n" in inputs else 1.0)
        steps = inputs.get("steps")
        if not isinstance(steps, int):
            steps = math.ceil(inputs["epochs"] / q)
        noises = inputs.get("groups_z") or [inputs["z"]]
        queries = [{"group": str(i), "clip": 1.0, "noise": z} for i, z in enumerate(noises)]
        sampling = {"policy": "poisson", "rate": q} if q < 1 else {"policy": "all"}
        yield pytest.param([Round(sampling, queries, steps)], "add-remove", inputs["delta"], id=case["name"])


def calibration_cases():
    """Epsilon, delta, rate, rounds and accountant of every calibration, and the noise multiplier that is known."""
    oracles = json.loads((REPOSITORY / "crates/veilgrad-accounting/tests/oracles.json").read_text())
    for place, case in enumerate(oracles["calibration"]):
        yield pytest.param(case["target_eps"], case["delta"], case["q"], case["steps"], case["z_exact"], id=f"oracle-{place}")
    for case in json.loads((REPOSITORY / "conformance/cases.json").read_text())["cases"]:
        if case["kind"] == "calibration":
            inputs = case["inputs"]
            steps = inputs.get("steps") or round(inputs["epochs"] / inputs["q"])
            # Theirs stop within 0.01 of epsilon, and bound it otherwise: no exact number is known.
            yield pytest.param(inputs["epsilon"], inputs["delta"], inputs["q"], steps, None, id=case["name"])


@pytest.mark.parametrize(("epsilon", "delta", "rate", "rounds", "known"), [*calibration_cases()])
@pytest.mark.parametrize("accountant", ["best", "rdp"])
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_calibration_cases_have_the_bits_of_the_command(epsilon, delta, rate, rounds, known, accountant, adjacency, capfd):
    words = ["--rate", repr(rate), "--steps", rounds, "--epsilon", epsilon, "--delta", repr(delta), "--adjacency", adjacency]
    words += [] if accountant == "best" else ["--accountant", accountant]
    code, document = command(capfd, "plan", *words)
    options = dict(rate=rate, rounds=rounds, adjacency=adjacency, accountant=accountant)
    if code:
        assert code == 7
        with pytest.raises(veilgrad.Unsupported):
            veilgrad.calibrate(epsilon, delta, **options)
        return
    found = veilgrad.calibrate(epsilon, delta, **options)
    assert found.noise_multiplier == document["noise_multiplier"]
    assert found.guarantee.epsilon == document["epsilon"] <= epsilon
    assert veilgrad.epsilon(Round.poisson(rate, found.noise_multiplier, rounds), delta, adjacency=adjacency).epsilon <= epsilon
    if known is not None and adjacency == "add-remove":
        assert found.noise_multiplier >= known * (1 - 1e-9)
        if accountant == "best":
            assert found.noise_multiplier == pytest.approx(known, rel=1e-4)


@pytest.mark.parametrize(("rounds", "adjacency", "delta"), [*oracle_cases(), *conformance_cases()])
@pytest.mark.parametrize("accountant", ["best", "pld", "rdp"])
def test_epsilon_has_the_bits_of_the_command(rounds, adjacency, delta, accountant, tmp_path, capfd):
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps(each.to_dict()) + "\n" for each in rounds))
    words = [] if accountant == "best" else ["--accountant", accountant]
    code, document = command(
        capfd, "account", path, "--delta", repr(delta), "--adjacency", adjacency, *words
    )
    if code:
        assert code == 7
        with pytest.raises(veilgrad.Unsupported):
            veilgrad.epsilon(rounds, delta, adjacency=adjacency, accountant=accountant)
        return
    found = veilgrad.epsilon(rounds, delta, adjacency=adjacency, accountant=accountant)
    assert found.epsilon == document["epsilon"]
    assert found.lower == document["epsilon_lower"]
    assert (found.accountant, found.method) == (document["accountant"], document["method"])
    # Dicts and files are the same rounds.
    assert veilgrad.epsilon(path, delta, adjacency=adjacency, accountant=accountant) == found
    lines = [each.to_dict() for each in rounds]
    assert veilgrad.epsilon(iter(lines), delta, adjacency=adjacency, accountant=accountant) == found


def test_delta_has_the_bits_of_the_command(tmp_path, capfd):
    rounds = [Round.poisson(0.01, 1.1, 1000), Round.all(40.0, 3)]
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(json.dumps(each.to_dict()) + "\n" for each in rounds))
    for epsilon in [0.0, 0.5, 1.5, 6.0]:
        _, document = command(capfd, "account", path, "--epsilon", epsilon)
        assert veilgrad.delta(rounds, epsilon).delta == document["delta"]


def test_adaptive_rounds_have_the_bits_of_the_command(tmp_path, capfd):
    path = tmp_path / "rounds.jsonl"
    line = json.dumps(Round.poisson(0.01, 1.1, 1000).to_dict())
    path.write_text(f'{{"mode": "adaptive", "order": 8.0}}\n{line}\n')
    _, document = command(capfd, "account", path, "--delta", "1e-5")
    assert veilgrad.epsilon(path, 1e-5).epsilon == document["epsilon"]
    with pytest.raises(veilgrad.Unsupported):
        veilgrad.delta(path, 1.0)
    path.write_text(f'{{"mode": "adaptive"}}\n{line}\n')
    with pytest.raises(veilgrad.Unsupported):
        veilgrad.epsilon(path, 1e-5)


@pytest.mark.parametrize(
    ("words", "options", "key"),
    [
        ("--rate 0.01 --steps 5000 --epsilon 2", dict(rate=0.01, rounds=5000), "noise_multiplier"),
        ("--rate 0.004266666666666667 --steps 14040 --epsilon 3",
         dict(rate=0.004266666666666667, rounds=14040), "noise_multiplier"),
        ("--records 60000 --batch 256 --steps 14040 --epsilon 1",
         dict(records=60000, batch=256, rounds=14040), "noise_multiplier"),
        ("--steps 1000 --epsilon 2 --noise-multiplier 1.2",
         dict(rounds=1000, noise_multiplier=1.2), "rate"),
        ("--rate 0.01 --epsilon 2 --noise-multiplier 1.2",
         dict(rate=0.01, noise_multiplier=1.2), "steps"),
        ("--records 1000 --batch 100 --steps 50 --epsilon 2 --sampling fixed --adjacency replace-one",
         dict(records=1000, batch=100, rounds=50, sampling="fixed", adjacency="replace-one"),
         "noise_multiplier"),
        ("--records 5800 --batch 100 --steps 290 --epsilon 3 --sampling allocation",
         dict(records=5800, batch=100, rounds=290, sampling="allocation"), "noise_multiplier"),
        ("--records 6000 --batch 60 --steps 200 --epsilon 2 --sampling truncated --max-batch 100",
         dict(records=6000, batch=60, rounds=200, sampling="truncated", maximum=100), "noise_multiplier"),
        ("--steps 10 --epsilon 2 --sampling all", dict(rounds=10, sampling="all"), "noise_multiplier"),
        ("--rate 0.01 --steps 500 --epsilon 2 --accountant rdp",
         dict(rate=0.01, rounds=500, accountant="rdp"), "noise_multiplier"),
    ],
)
def test_calibration_has_the_bits_of_the_command(words, options, key, capfd):
    _, document = command(capfd, "plan", "--delta", "1e-5", *words.split())
    epsilon = float(words.split("--epsilon ")[1].split()[0])
    found = veilgrad.calibrate(epsilon, 1e-5, **options)
    value = {"noise_multiplier": found.noise_multiplier, "rate": found.rate, "steps": found.rounds}
    assert value[key] == document[key]
    assert found.guarantee.epsilon == document["epsilon"] <= epsilon


def test_an_epoch_of_allocation_costs_what_the_command_says_and_less_than_shuffling():
    found = veilgrad.epsilon(Round.allocation(58, 0.823, rounds=290), 1e-5)
    assert found.epsilon == pytest.approx(2.7071, abs=1e-3)
    shuffled = veilgrad.epsilon(Round.shuffle(5800, 100, 0.823, rounds=290), 1e-5, adjacency="zero-out")
    assert shuffled.epsilon > 2 * found.epsilon
    # Nothing is known below the price of an epoch that is only begun.
    assert veilgrad.epsilon(Round.allocation(58, 0.823, rounds=233), 1e-5).lower is None


def test_calibration_says_what_is_missing():
    for options in (dict(sampling="truncated", records=100), dict(sampling="allocation", maximum=5)):
        with pytest.raises(ValueError, match="maximum"):
            veilgrad.calibrate(1.0, 1e-5, rate=0.1, rounds=10, **options)
    for rate in (-0.2, 1.5, float("nan")):
        for sampling in ("poisson", "fixed", "truncated", "allocation", "shuffle"):
            maximum = 5 if sampling == "truncated" else None
            with pytest.raises(ValueError, match="sample rate"):
                veilgrad.calibrate(1.0, 1e-5, rate=rate, records=100, rounds=10, sampling=sampling, maximum=maximum)
    with pytest.raises(ValueError, match="leave out one"):
        veilgrad.calibrate(1.0, 1e-5, rate=0.01)
    with pytest.raises(ValueError, match="cannot find"):
        veilgrad.calibrate(1.0, 1e-5, rate=0.01, find="noise")
    with pytest.raises(veilgrad.Unsupported):
        veilgrad.calibrate(1e-9, 1e-5, rate=1.0, noise_multiplier=0.1)


def test_curves_are_bounds_on_the_safe_side():
    rounds = Round.poisson(0.02, 1.0, 500)
    epsilons, deltas = veilgrad.profile(rounds, last=4.0, points=9)
    assert epsilons.dtype == deltas.dtype == np.float64
    assert np.all(np.diff(deltas) <= 0)
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        # Never below the lower end of what is certified, and close to it.
        exact = veilgrad.delta(rounds, float(epsilon), accountant="pld").delta
        assert delta >= exact * 0.98 and delta <= exact * 1.02 + 1e-12
    rates, found = veilgrad.tradeoff(rounds)
    assert np.all(np.diff(found) >= 0) and np.all(found >= rates) and np.all(found <= 1)
    assert veilgrad.advantage(rounds) >= np.max(found - rates) - 1e-6
    # The curve of one Gaussian is known: Phi(Phi^-1(fpr) + mu).
    from statistics import NormalDist

    gauss = NormalDist()
    rates, found = veilgrad.tradeoff(Round.all(1.0), [1e-4, 0.01, 0.1, 0.5])
    exact = [gauss.cdf(gauss.inv_cdf(float(rate)) + 1.0) for rate in rates]
    assert np.all(found >= exact) and np.allclose(found, exact, rtol=0.01)


def test_epsilon_grows_with_rounds():
    after, epsilons = veilgrad.spent(Round.poisson(0.01, 1.0, 1000), 1e-5, points=10)
    assert after[-1] == 1000 and np.all(np.diff(epsilons) > 0)
    assert epsilons[-1] == veilgrad.epsilon(Round.poisson(0.01, 1.0, 1000), 1e-5).epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 1, "sampling": {"policy": "magic"}, "queries": []},
        {"rounds": 1, "sampling": {"policy": "all"}, "queries": []},
        {"rounds": -1, "sampling": {"policy": "all"}, "queries": [{"group": "g", "clip": 1.0, "noise": 1.0}]},
        {"rounds": 1, "sampling": {"policy": "all"}, "queries": [{"group": "g", "clip": 1.0, "noise": math.nan}]},
        {"rounds": 1, "sampling": {"policy": "poisson", "rate": 2.0}, "queries": [{"group": "g", "clip": 1.0, "noise": 1.0}]},
        {"rounds": 1, "sampling": {"policy": "all"}, "queries": [{"group": "g", "clip": 1.0, "noise": 1.0, "x": 1}]},
    ],
)
def test_what_is_no_round_is_refused(wrong):
    with pytest.raises(ValueError):
        veilgrad.epsilon(wrong, 1e-5)


def test_numbers_out_of_range_are_refused():
    rounds = Round.all(1.0)
    for delta in [0.0, 1.0, -1.0, math.nan]:
        with pytest.raises(ValueError, match="delta"):
            veilgrad.epsilon(rounds, delta)
    with pytest.raises(ValueError, match="adjacency"):
        veilgrad.epsilon(rounds, 1e-5, adjacency="add")
    with pytest.raises(ValueError, match="accountant"):
        veilgrad.epsilon(rounds, 1e-5, accountant="gdp")
    with pytest.raises(FileNotFoundError):
        veilgrad.epsilon("no such file", 1e-5)


def test_other_threads_run_while_epsilon_is_computed():
    rounds = [Round.poisson(0.01 + 1e-6 * i, 0.6 + 1e-5 * i, 3) for i in range(3000)]
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    veilgrad.epsilon(rounds, 1e-5)
    end = time.monotonic()
    done.set()
    thread.join()
    assert sum(start < at < end for at in ticks) > 1


def test_signals_end_the_wait():
    import signal

    rounds = [Round.poisson(0.01 + 1e-7 * i, 0.6 + 1e-6 * i, 3) for i in range(20000)]
    lines = [each.to_dict() for each in rounds]

    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Stop):
            for _ in range(1000):
                veilgrad.epsilon(lines, 1e-5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
