"""The command that comes with the wheel."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import veilgrad

SCRIPT = Path(sysconfig.get_path("scripts")) / "veilgrad"


def run(*words):
    return subprocess.run([*words], capture_output=True, text=True)


def test_the_script_and_the_module_are_the_command():
    for program in ([SCRIPT], [sys.executable, "-m", "veilgrad"]):
        found = run(*program, "--version")
        assert found.returncode == 0 and veilgrad.__version__ in found.stdout
        assert "train" in run(*program, "--help").stdout


def test_exit_codes_and_messages_are_those_of_the_command(tmp_path):
    rounds = tmp_path / "rounds.jsonl"
    rounds.write_text('{"rounds":1,"sampling":{"policy":"all"},"queries":[{"group":"g","clip":1,"noise":1}]}\n')
    assert run(SCRIPT, "account", rounds, "--delta", "1e-5").returncode == 0
    found = run(SCRIPT, "account", rounds, "--delta", "2")
    assert found.returncode == 2 and "delta" in found.stderr
    found = run(SCRIPT, "account", tmp_path / "none", "--delta", "1e-5")
    assert found.returncode == 1 and found.stderr.startswith("error: ")
    found = run(SCRIPT, "plan", "--sampling", "all", "--steps", "1", "--delta", "1e-9", "--epsilon", "1e-30")
    assert found.returncode == 7
