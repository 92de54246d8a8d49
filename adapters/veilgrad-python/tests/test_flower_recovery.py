"""A federated server that is killed: what was charged stays charged, and nothing is used twice."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from flower_server import COHORT, DELTA, FATAL_ROUND, ROUNDS, Federation, initial, strategy  # noqa: E402

import veilgrad  # noqa: E402
from veilgrad.flower import Sgd  # noqa: E402
from veilgrad.flower._checkpoint import Checkpoint  # noqa: E402

#: When the server dies, and how many rounds were saved then.
MOMENTS = {"after the charge": 2, "after the release": 2, "during the save": 2, "after the save": 3}


def killed(directory: Path, moment: str) -> Checkpoint:
    """The checkpoint of a server that was killed."""
    script = Path(__file__).parent / "flower_server.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*map(str, sys.path), ""]))}
    ended = subprocess.run([sys.executable, script, directory, moment], env=environment, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    return Checkpoint.read(directory / "checkpoint.npz")


def lost_cohort(directory: Path) -> list[int]:
    """Whom the killed server invited to its last round."""
    found = json.loads((directory / COHORT).read_text())
    assert found
    return found


def epsilon_of(rounds: int) -> float:
    made = strategy(Path("unused"))
    return veilgrad.epsilon(made.cohort.rounds(made.noise_multiplier, rounds), DELTA).epsilon


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_server_is_charged_and_continued_within_its_budget(moment: str, tmp_path: Path) -> None:
    saved = killed(tmp_path, moment)
    assert saved.released == MOMENTS[moment]
    # Three rounds were charged, whether they were released or not.
    assert math.isclose(veilgrad.claim(tmp_path / "ledger.db").spent, epsilon_of(FATAL_ROUND), rel_tol=1e-6)
    grid = Federation()
    made = strategy(tmp_path)
    result = made.start(grid, initial(), timeout=1)
    # The budget is for six rounds: one that was charged and lost is missing in the end.
    released = ROUNDS - FATAL_ROUND + saved.released
    assert grid.rounds == list(range(saved.released + 1, released + 1))
    # A cohort of 40 users at rate 1/2 is empty, or that of the killed server again, with probability 2^-39: below 2e-12.
    assert grid.invited[0] != lost_cohort(tmp_path)
    assert Checkpoint.read(tmp_path / "checkpoint.npz").released == released
    assert math.isclose(made.claim().spent, epsilon_of(ROUNDS), rel_tol=1e-6)
    assert made.claim().epsilon <= 8.0
    assert np.isfinite(result.arrays["w"].numpy()).all()
    # Once all is done, starting again charges nothing and returns the model.
    grid = Federation()
    again = strategy(tmp_path).start(grid, initial(), timeout=1)
    assert grid.invited == [] and np.array_equal(again.arrays["w"].numpy(), result.arrays["w"].numpy())
    assert math.isclose(made.claim().spent, epsilon_of(ROUNDS), rel_tol=1e-6)


def test_a_larger_budget_pays_for_the_lost_round(tmp_path: Path) -> None:
    room = (20.0, DELTA)
    noise = strategy(tmp_path / "unused").noise_multiplier
    first = strategy(tmp_path, target=None, noise_multiplier=noise, budget=room)
    grid = Federation()

    def stop(number: int, _: object) -> None:
        if number == FATAL_ROUND - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.start(grid, initial(), timeout=1, evaluate_fn=stop)
    second = strategy(tmp_path, target=None, noise_multiplier=noise, budget=room, charge_ahead=3)
    second.start(Federation(), initial(), timeout=1)
    assert Checkpoint.read(tmp_path / "checkpoint.npz").released == ROUNDS
    assert math.isclose(second.claim().spent, epsilon_of(ROUNDS), rel_tol=1e-6)


def test_a_continued_run_starts_from_what_was_saved_and_draws_another_cohort(tmp_path: Path) -> None:
    saved = killed(tmp_path, "after the release")
    cohorts, models = [lost_cohort(tmp_path)], []
    for number in range(2):
        copy = tmp_path.with_name(f"{tmp_path.name}-{number}")
        shutil.copytree(tmp_path, copy)
        grid = Federation()
        seen: list[np.ndarray] = []
        strategy(copy).start(grid, initial(), timeout=1, evaluate_fn=lambda _, arrays, seen=seen: seen.append(arrays["w"].numpy()))
        assert np.array_equal(seen[0], saved.model["w"])
        cohorts.append(grid.invited[0])
        models.append(seen[1])
    # Of three cohorts of 40 users at rate 1/2, two are equal with probability 3 in 2^40: below 3e-12.
    assert len(set(map(tuple, cohorts))) == 3 and not np.array_equal(models[0], models[1])


def test_a_ledger_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    run, backup = tmp_path / "run", tmp_path / "backup"
    made = strategy(run, target=None, noise_multiplier=1.0, budget=(50.0, DELTA))

    def stop(number: int, _: object) -> None:
        if number == 1:
            shutil.copytree(run, backup)
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.start(Federation(), initial(), timeout=1, evaluate_fn=stop)
    for file in run.glob("ledger.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for file in backup.glob("ledger.db*"):
        if file.is_file():
            shutil.copy(file, run)
    with pytest.raises(veilgrad.VeilgradError, match="rolled back|branch|head"):
        strategy(run, target=None, noise_multiplier=1.0, budget=(50.0, DELTA)).start(Federation(), initial(), timeout=1)


def test_other_settings_and_other_processes_are_refused(tmp_path: Path) -> None:
    killed(tmp_path, "after the charge")
    for changes, name in [({"clip": 2.0}, "round"), ({"server": Sgd()}, "server"), ({"rounds": 7}, "round"), ({"weight_bound": 3.0, "expected_weight": 1.0}, "weights")]:
        with pytest.raises(ValueError, match=name):
            strategy(tmp_path, **changes).start(Federation(), initial(), timeout=1)

    def second(*_: object) -> None:
        with pytest.raises(veilgrad.VeilgradError, match="another process"):
            strategy(tmp_path).start(Federation(), initial(), timeout=1)

    strategy(tmp_path).start(Federation(), initial(), timeout=1, evaluate_fn=second)


def test_a_run_keeps_released_values_only(tmp_path: Path) -> None:
    strategy(tmp_path).start(Federation(), initial(), timeout=1)
    assert {path.name for path in tmp_path.iterdir()} - {"ledger.db.holds"} <= {
        "checkpoint.npz", "ledger.db", "ledger.db.anchor", "ledger.db-wal", "ledger.db-shm", "lock",
    }
    with np.load(tmp_path / "checkpoint.npz") as arrays:
        assert sorted(arrays) == ["facts", "mean0", "model0", "square0"]
