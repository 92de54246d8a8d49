"""The pages about peers: every block runs, and the difference that is shown is that of two scripts that run."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "adapters/veilgrad-python/examples"
SCRIPTS = ("mnist_opacus.py", "mnist_veilgrad.py")


def run_blocks(page):
    found = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found
    namespace = {}
    for number, block in enumerate(found):
        if "jax_privacy" in block:
            pytest.importorskip("jax_privacy")
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)


def test_the_page_about_dp_accounting_runs():
    pytest.importorskip("dp_accounting")
    run_blocks("docs/python-dp-accounting.md")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_page_about_opacus_runs():
    pytest.importorskip("opacus")
    run_blocks("docs/python-opacus.md")


def test_the_difference_on_the_page_is_that_of_the_scripts():
    shown = re.search(r"^```diff\n(.*?)^```$", (REPOSITORY / "docs/python-opacus.md").read_text(), re.MULTILINE | re.DOTALL)
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in SCRIPTS)
    assert shown[1].splitlines() == list(difflib.unified_diff(before, after, *SCRIPTS, n=2, lineterm=""))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_run_at_toy_size(script):
    pytest.importorskip("opacus")
    ran = subprocess.run([sys.executable, EXAMPLES / script, "600", "1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"accuracy [\d.]+ %, epsilon [\d.]+ at delta 1e-05", ran.stdout)
