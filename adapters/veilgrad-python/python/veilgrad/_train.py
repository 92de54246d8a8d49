"""The main job: from a configuration to a model, a ledger and a report."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from veilgrad import _native, _progress, _table

# The keys of [data] that name files.
_PATHS = ("train", "labels", "test", "test_labels")


class Result:
    """What a training run left in its directory: model, report and statement.

    In a notebook it shows its report.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> points = np.random.default_rng(0).uniform(0, 10, (500, 2)).astype(np.float32)
    >>> np.save(place / "points.npy", points)
    >>> np.save(place / "labels.npy", (points[:, 0] > points[:, 1]).astype(np.float32))
    >>> data = {"train": place / "points.npy", "labels": place / "labels.npy", "dataset": "points", "records": 500}
    >>> public = {"classes": ["below", "above"], "shape": [2], "bounds": [0.0, 10.0]}
    >>> config = {
    ...     "data": {**data, **public},
    ...     "model": {"kind": "linear"},
    ...     "privacy": {"epsilon": 3.0, "delta": 1e-5, "expected_batch": 100},
    ...     "train": {"rounds": 50, "optimizer": {"kind": "sgd", "lr": 1.0}},
    ... }
    >>> _ = train(config, out=place / "run", ledger=place / "ledger.db")
    >>> result = Result(place / "run")  # what an earlier program left
    >>> result.predict([[9.0, 1.0], [1.0, 9.0]]).tolist()
    ['above', 'below']
    >>> result.report["rounds"], sorted(weights.shape for weights in result.weights.values())
    (50, [(2,), (2, 2)])
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        #: What may be claimed and how that is known, as a dict: `epsilon`, `delta`, `test_accuracy`, ...
        self.report: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        #: The promise in plain words.
        self.statement = (self.directory / "statement.txt").read_text()

    @property
    def epsilon(self) -> float | None:
        """What may be claimed of everything that was released; `None` if nothing may."""
        found: float | None = self.report["epsilon"]
        return found

    @property
    def ledger(self) -> Path:
        """The ledger that was charged."""
        return self.directory / str(self.report["ledger"]["path"])

    @cached_property
    def model(self) -> _native.Model:
        """The trained model."""
        return _native.Model(self.directory / "model.safetensors")

    @property
    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """The weights by name."""
        return self.model.weights

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return self.model.classes

    def predict_proba(self, data: Any) -> npt.NDArray[np.float64]:
        """The probability of each class, one row per example; NaN for an example that is not finite.

        `data` is an array of examples in their own units, or, for a model of a table, a DataFrame or a dict of columns.
        """
        declaration = json.loads(self.model.declaration)
        columns = declaration.get("columns") or []
        if columns:
            inputs = _table.encode(columns, data, declaration.get("missing"))
        else:
            inputs = np.asarray(data)
            if inputs.dtype not in (np.float32, np.float64):
                inputs = inputs.astype(np.float32)
        return softmax(self.model.outputs(inputs))

    def predict(self, data: Any) -> npt.NDArray[Any]:
        """The name of the most likely class of each example."""
        found = self.predict_proba(data)
        names: npt.NDArray[Any] = np.asarray(self.classes)[np.nan_to_num(found).argmax(axis=1)]
        return names

    def _repr_html_(self) -> str:
        page = html.escape((self.directory / "report.html").read_text(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="800" style="border:0"></iframe>'

    def __repr__(self) -> str:
        return f"Result({str(self.directory)!r}, epsilon={self.epsilon})"


def softmax(outputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities from outputs, row by row."""
    powers: npt.NDArray[np.float64] = np.exp(
        outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    )
    shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def train(
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    epsilon: float | None = None,
    threads: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    new_budget: bool = False,
    wait: int = 60,
    progress: bool | _progress.Progress | None = None,
) -> Result:
    """Trains privately: what `veilgrad train` does, in this process.

    Args:
        config: The path of a configuration in TOML, or the same as a dict. Paths in a dict are relative to the working
            directory; it needs `out`, where it is kept as `config.toml`.
        out: Where results go; by default `runs/` and the configuration's name.
        ledger: The ledger of the data; by default that of the command.
        epsilon: What the run may cost, instead of what the configuration says.
        threads: How many threads; the result does not depend on it.
        resume: Goes on with a run that was interrupted.
        overwrite: Replaces the results of a finished run.
        new_budget: Charges another ledger than the one that results in `out` name.
        wait: How many seconds to wait for a ledger that another process holds.
        progress: A callable that is called with the rounds that are done and the number of all, or whether to show a bar;
            by default on a terminal and in notebooks.

    Ctrl-C stops in order: ledger and checkpoint are whole, and `resume` goes on.

    Raises:
        BudgetExhausted: When the budget does not cover the run; the data was not opened.
        ValueError: When the configuration is wrong.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> points = np.random.default_rng(0).uniform(0, 10, (500, 2)).astype(np.float32)
    >>> np.save(place / "points.npy", points)
    >>> np.save(place / "labels.npy", (points[:, 0] > points[:, 1]).astype(np.float32))
    >>> config = {
    ...     "data": {
    ...         "train": place / "points.npy",
    ...         "labels": place / "labels.npy",
    ...         "dataset": "points",
    ...         "records": 500,  # declared, like classes, shape and bounds
    ...         "classes": ["below", "above"],
    ...         "shape": [2],
    ...         "bounds": [0.0, 10.0],
    ...     },
    ...     "model": {"kind": "linear"},
    ...     "privacy": {"epsilon": 3.0, "delta": 1e-5, "expected_batch": 100},
    ...     "train": {"rounds": 50, "optimizer": {"kind": "sgd", "lr": 1.0}},
    ... }
    >>> result = train(config, out=place / "run", ledger=place / "ledger.db")
    >>> result.epsilon <= 3.0 and float((result.predict(points) == "above").mean()) > 0.3
    True
    """
    if isinstance(config, Mapping):
        if out is None:
            raise ValueError("a configuration that is a dict needs out")
        path = _write(config, Path(out))
    else:
        path = Path(config)
        out = Path("runs") / path.stem if out is None else out
    words = ["veilgrad", "train", str(path), "--quiet", "--out", str(out), "--wait", str(wait)]
    for name, value in (("--ledger", ledger), ("--epsilon", epsilon), ("--threads", threads)):
        if value is not None:
            words += [name, str(value)]
    flags = {"--resume": resume, "--overwrite": overwrite, "--new-budget": new_budget}
    words += [name for name, given in flags.items() if given]
    _native.run_training(words, _progress.chosen(progress))
    return Result(out)


def _write(config: Mapping[str, Any], out: Path) -> Path:
    """Keeps a configuration beside its results, with absolute paths."""
    tables = {name: dict(table) for name, table in config.items()}
    data = tables.get("data", {})
    for key in _PATHS:
        if data.get(key) is not None:
            data[key] = str(Path(data[key]).absolute())
    text = _native.toml(json.dumps(tables))
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = out / "config.toml"
    path.write_text(text)
    return path
