"""The checkpoint of a federated run: released values only, in one file that is replaced at once.

Nothing in it could undo a charge or be used twice: no sample, no sum, no noise, nothing of a client. A run that continues from
it charges new rounds and draws new cohorts.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

import veilgrad

FORMAT = 1


@dataclass
class Checkpoint:
    """What was released up to a round, and what must not change when the run continues."""

    #: How many rounds were released.
    released: int
    #: Public parameters. Another set of them is another run.
    settings: dict[str, Any]
    #: The last row of the ledger; `None` for a run in memory.
    head: str | None
    #: Clip norms, as `Plan.adapted` returns them.
    adapted: tuple[int, dict[str, float]]
    #: The trained arrays, and the state of the server optimizer for each of them.
    model: dict[str, npt.NDArray[Any]]
    optimizer: dict[str, dict[str, npt.NDArray[np.float32]]]

    def write(self, path: Path) -> None:
        """Replaces the file. After a crash at any moment, it is the old one or this one."""
        facts = {
            "format": FORMAT,
            "released": self.released,
            "settings": self.settings,
            "head": self.head,
            "adapted": self.adapted,
            "names": list(self.model),
            "remembers": {name: list(state) for name, state in self.optimizer.items()},
        }
        arrays: dict[str, npt.NDArray[Any]] = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        for number, name in enumerate(self.model):
            arrays[f"model{number}"] = self.model[name]
            for key, values in self.optimizer[name].items():
                arrays[f"{key}{number}"] = values
        new = path.with_suffix(".new")
        with open(new, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """The checkpoint of a file."""
        with np.load(path, allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            if facts["format"] != FORMAT:
                raise veilgrad.Unsupported(f"{path} was written by another version of this program")
            model = {name: arrays[f"model{number}"] for number, name in enumerate(facts["names"])}
            optimizer = {
                name: {key: arrays[f"{key}{number}"] for key in facts["remembers"][name]} for number, name in enumerate(model)
            }
        rounds, estimates = facts["adapted"]
        return cls(facts["released"], facts["settings"], facts["head"], (rounds, estimates), model, optimizer)

    def check(self, settings: dict[str, Any], place: Path) -> None:
        """Refuses to continue with other settings."""
        # Through JSON, as they were written.
        now = json.loads(json.dumps(settings))
        changed = sorted(key for key in now.keys() | self.settings.keys() if now.get(key) != self.settings.get(key))
        if changed:
            raise ValueError(
                f"{place} holds a run with other settings ({', '.join(changed)}): continue it as it was begun, or choose "
                "another directory"
            )


def lock(directory: Path) -> IO[bytes]:
    """Keeps other processes from running in a directory until the file is closed or the process ends."""
    directory.mkdir(parents=True, exist_ok=True)
    file = open(directory / "lock", "wb")  # noqa: SIM115  closed by whoever holds it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise veilgrad.VeilgradError(f"another process runs in {directory}") from None
    return file
