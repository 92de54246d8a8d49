"""Estimators for scikit-learn on the native engine: exact sums, certified accounting, a ledger if you name one.

What private data could decide is declared: classes, bounds, categories and the number of records. Declaring ``"public"``
instead takes them from the training data, and says so in the conditions of the guarantee: it then does not cover them.

>>> import numpy as np
>>> from veilgrad.sklearn import VeilgradClassifier
>>> rng = np.random.default_rng(0)
>>> X = rng.uniform(-1, 1, (2000, 2))
>>> y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
>>> model = VeilgradClassifier(epsilon=3.0, delta=1e-5, classes=["no", "yes"], bounds=(-1, 1), records=2000)
>>> model.fit(X, y).score(X, y) > 0.9
True
>>> model.report_()["epsilon"] <= 3.0
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from veilgrad import _native, _progress, _table
from veilgrad._train import softmax

Public: TypeAlias = Literal["public"]
Bounds: TypeAlias = tuple[float, float] | Sequence[tuple[float, float]] | Mapping[str, tuple[float, float]] | Public

_NOT_COVERED = "the {} was taken from the training data as if it were public: the guarantee does not cover it"


# scikit-learn reads the parameters from the signature that this makes.
@dataclass(eq=False, repr=False)
class _Private(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: declared inputs, the engine, the guarantee."""

    epsilon: float = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    bounds: Bounds | None = None
    categories: Mapping[str, Sequence[str]] | None = None
    records: int | Public | None = None
    batch: float | None = None
    rounds: int = 200
    clip: float = 1.0
    learning_rate: float = 0.5
    momentum: float = 0.9
    average: float | None = 0.9
    hidden: Sequence[int] = ()
    seed: int = 0
    ledger: str | os.PathLike[str] | None = None
    dataset: str | None = None
    threads: int | None = None
    progress: bool | _progress.Progress | None = False

    # Inputs.

    def _inputs(self, X: Any, *, reset: bool) -> npt.NDArray[np.float32]:
        """Numbers within their declared bounds, and declared words one-hot."""
        if self.categories is not None or (_table.is_table(X) and isinstance(self.bounds, Mapping)):
            return self._encode(X, reset=reset)
        rows = validate_data(
            self,
            X,
            reset=reset,
            dtype=np.float64,
            ensure_all_finite=False,
            ensure_min_samples=1,
        )
        if reset:
            self._bounds = self._declared_bounds(rows)
        low, high = self._bounds
        return _scaled(rows, low, high)

    def _declared_bounds(
        self, rows: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        width = rows.shape[1]
        declared = self.bounds
        if declared is None:
            raise ValueError("bounds must be declared: (low, high) for all features, or one pair for each")
        if isinstance(declared, str):
            if declared != "public":
                raise ValueError(f"bounds {declared!r} are neither numbers nor 'public'")
            self._note("bounds of features")
            finite = np.where(np.isfinite(rows), rows, np.nan)
            low, high = np.nanmin(finite, axis=0), np.nanmax(finite, axis=0)
            return np.nan_to_num(low), np.where(high > low, high, np.nan_to_num(low) + 1.0)
        if isinstance(declared, Mapping):
            names = getattr(self, "feature_names_in_", None)
            if names is None:
                raise ValueError("bounds by name need a DataFrame")
            pairs = np.array([declared[name] for name in names], dtype=np.float64)
        else:
            pairs = np.array(declared, dtype=np.float64)
            pairs = np.tile(pairs, (width, 1)) if pairs.shape == (2,) else pairs
        if pairs.shape != (width, 2) or not np.all(np.isfinite(pairs)):
            raise ValueError(f"bounds are one pair of numbers, or one for each of {width} features")
        if not np.all(pairs[:, 0] < pairs[:, 1]):
            raise ValueError("every lower bound must be below its upper bound")
        return pairs[:, 0], pairs[:, 1]

    def _encode(self, X: Any, *, reset: bool) -> npt.NDArray[np.float32]:
        categories = dict(self.categories or {})
        bounds = self.bounds or {}
        if not isinstance(bounds, Mapping):
            raise ValueError("with categories, bounds are declared by name")
        found = _table.columns(X)
        if reset:
            self._columns = [name for name in found if name in categories or name in bounds]
            unknown = [name for name in found if name not in self._columns]
            if unknown:
                raise ValueError(f"columns {unknown} have neither bounds nor categories")
            self.feature_names_in_ = np.array(self._columns, dtype=object)
            self.n_features_in_ = len(self._columns)
        declared = [
            {"name": name, "categories": categories[name]}
            if name in categories
            else {"name": name, "bounds": bounds[name]}
            for name in self._columns
        ]
        return _table.encode(declared, found)

    # Training.

    def _note(self, what: str) -> None:
        self._conditions.append(_NOT_COVERED.format(what))

    def _train(
        self,
        inputs: npt.NDArray[np.float32],
        targets: npt.NDArray[np.float32],
        outputs: int,
        loss: Literal["softmax", "squared"],
    ) -> None:
        if self.records is None:
            raise ValueError("records must be declared: a public number of records, about as many as there are")
        if isinstance(self.records, str):
            if self.records != "public":
                raise ValueError(f"records {self.records!r} is neither a number nor 'public'")
            self._note("number of records")
            records = len(inputs)
        else:
            records = self.records
        if self.ledger is not None and self.dataset is None:
            raise ValueError("a ledger needs the name of the dataset")
        batch = self.batch if self.batch is not None else max(1.0, min(records, max(64.0, 0.1 * records)))
        self._weights, self.claim_ = _unpacked(
            *_native.fit(
                inputs,
                targets,
                outputs=outputs,
                loss=loss,
                epsilon=self.epsilon,
                delta=self.delta,
                records=records,
                batch=float(batch),
                rounds=self.rounds,
                clip=self.clip,
                learning_rate=self.learning_rate,
                momentum=self.momentum,
                average=self.average,
                hidden=list(self.hidden),
                seed=self.seed,
                threads=self.threads,
                ledger=self.ledger,
                dataset=self.dataset,
                progress=_progress.chosen(self.progress),
            )
        )
        self.claim_["conditions"] = [*self.claim_["conditions"], *self._conditions]
        self.n_iter_ = self.rounds

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self)
        values = self._inputs(X, reset=False).astype(np.float64)
        for place, (weight, bias) in enumerate(self._weights):
            if place > 0:
                values = np.maximum(values, 0.0)
            values = values @ weight + bias
        return values

    # The guarantee.

    def report_(self) -> dict[str, Any]:
        """What may be claimed of the model, and how that is known.

        With a ledger, about everything that was charged to the dataset.
        """
        check_is_fitted(self)
        if self.ledger is None:
            return {**self.claim_, "adjacency": "add-remove", "unit": "example", "ledger": None}
        found: dict[str, Any] = json.loads(_native.report(self.ledger, self.dataset)[0])
        found["conditions"] = [*found["conditions"], *self._conditions]
        return found

    def statement_(self) -> str:
        """The promise in plain words."""
        check_is_fitted(self)
        if self.ledger is not None:
            text = _native.report(self.ledger, self.dataset)[2]
            return "\n".join([text.rstrip(), *(f"Condition: {c}." for c in self._conditions)]) + "\n"
        claim = self.claim_
        lines = [
            f"Adding or removing one example changes the chances of everything that was released by a factor of at most "
            f"e^{_up(claim['epsilon'])}, except with probability {claim['delta']:g}: (epsilon, delta)-differential privacy, "
            f"adjacency add-remove.",
            f"Why: {claim['why']}.",
            "The run was charged in memory: what was spent on the same data before or afterwards is not counted.",
            *(f"Condition: {condition}." for condition in claim["conditions"]),
        ]
        return "\n".join(lines) + "\n"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = True
        return tags


def _scaled(
    rows: npt.NDArray[np.float64], low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Features whose bounds begin at 0 to [0, 1], others to [-1, 1], clamped. NaN stays: the record contributes zero."""
    share = np.clip((rows - low) / (high - low), 0.0, 1.0)
    return np.where(low == 0.0, share, 2.0 * share - 1.0).astype(np.float32)


def _unpacked(
    weights: dict[str, npt.NDArray[np.float32]], claim: _native.Claim
) -> tuple[list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]], dict[str, Any]]:
    """Weights and biases of the layers in their order, and the claim as plain values."""
    arrays = [weights[name].astype(np.float64) for name in sorted(weights, key=_layer)]
    layers = list(zip(arrays[::2], arrays[1::2], strict=True))
    names = ("epsilon", "delta", "spent", "accountant", "why", "conditions")
    return layers, {name: getattr(claim, name) for name in names}


def _layer(name: str) -> tuple[int, bool]:
    """The order of parameters: layer by layer, weight before bias."""
    digits = "".join(letter for letter in name if letter.isdigit())
    return int(digits or 0), name.endswith("bias")


def _up(value: float) -> str:
    """Rounded up to two digits after the point."""
    return f"{np.ceil(value * 100) / 100:.2f}"


@dataclass(eq=False, repr=False, kw_only=True)
class VeilgradClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """Softmax regression (or a perceptron, with `hidden`) trained with differential privacy.

    Args:
        epsilon, delta: The budget of `fit`, for adding or removing one example.
        classes: All classes, declared; ``"public"`` takes them from `y`. An example of another class contributes zero.
        bounds: (low, high) of all features, a pair for each, or pairs by name; values beyond are clamped.
        categories: The words of each column of words, by name.
        records: A public number of records, about as many as there are; ``"public"`` takes the number of rows.
        batch: The expected number of records in a round; by default a tenth of the records.
        rounds, clip, learning_rate, momentum, average, hidden, seed: How it is trained.
        ledger, dataset: A durable ledger to charge, and the name of the dataset in it.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (2000, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = VeilgradClassifier(3.0, 1e-5, classes=["no", "yes"], bounds=(0, 10), records=2000)
    >>> model.fit(X, y).score(X, y) > 0.9
    True
    """

    classes: Sequence[Any] | Public | None = None

    def fit(self, X: Any, y: Any) -> VeilgradClassifier:
        """Trains the model and charges the ledger."""
        self._conditions: list[str] = []
        inputs = self._inputs(X, reset=True)
        labels = _column(y, len(inputs))
        if self.classes is None:
            raise ValueError("classes must be declared")
        if isinstance(self.classes, str):
            if self.classes != "public":
                raise ValueError(f"classes {self.classes!r} are neither a list nor 'public'")
            from sklearn.utils.multiclass import check_classification_targets

            check_classification_targets(labels)
            self._note("set of classes")
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("a classifier needs at least two classes; there is one class")
        # The number of the class, NaN for what is none of them.
        place = {label: float(number) for number, label in enumerate(self.classes_.tolist())}
        targets = [place.get(label, np.nan) for label in labels.tolist()]
        self._train(inputs, np.array(targets, np.float32)[:, None], len(self.classes_), "softmax")
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Outputs before the softmax; for two classes, the difference of both."""
        found = self._outputs(X)
        return found[:, 1] - found[:, 0] if found.shape[1] == 2 else found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probability of each class."""
        return softmax(self._outputs(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most likely class."""
        outputs = self._outputs(X)
        found: npt.NDArray[Any] = self.classes_[np.nan_to_num(outputs).argmax(axis=1)]
        return found


@dataclass(eq=False, repr=False, kw_only=True)
class VeilgradRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """Linear regression (or a perceptron, with `hidden`) trained with differential privacy.

    Args:
        epsilon, delta: The budget of `fit`, for adding or removing one example.
        target_bounds: (low, high) of the target, declared; ``"public"`` takes them from `y`. Targets beyond are clamped.

    The others are those of `VeilgradClassifier`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (2000, 2))
    >>> y = 3 * X[:, 0] - X[:, 1]
    >>> model = VeilgradRegressor(3.0, 1e-5, bounds=(0, 10), target_bounds=(-10, 30), records=2000)
    >>> model.fit(X, y).score(X, y) > 0.8
    True
    >>> model.report_()["epsilon"] <= 3.0
    True
    """

    target_bounds: tuple[float, float] | Public | None = None
    learning_rate: float = 0.3

    def fit(self, X: Any, y: Any) -> VeilgradRegressor:
        """Trains the model and charges the ledger."""
        self._conditions: list[str] = []
        inputs = self._inputs(X, reset=True)
        values = _column(y, len(inputs)).astype(np.float64)
        if self.target_bounds is None:
            raise ValueError("target_bounds must be declared")
        if isinstance(self.target_bounds, str):
            if self.target_bounds != "public":
                raise ValueError(f"target_bounds {self.target_bounds!r} are neither numbers nor 'public'")
            self._note("bounds of the target")
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            high = high if high > low else low + 1.0
        else:
            low, high = (float(bound) for bound in self.target_bounds)
        if not low < high:
            raise ValueError("the lower bound of the target must be below its upper bound")
        self._middle, self._half = 0.5 * (low + high), 0.5 * (high - low)
        targets = np.clip((values - self._middle) / self._half, -1.0, 1.0).astype(np.float32)
        self._train(inputs, targets[:, None], 1, "squared")
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The predicted targets."""
        found: npt.NDArray[np.float64] = self._outputs(X)[:, 0] * self._half + self._middle
        return found


def _column(y: Any, rows: int) -> npt.NDArray[Any]:
    """Labels as one axis, as many as there are rows."""
    from sklearn.utils.validation import check_consistent_length, column_or_1d

    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    found: npt.NDArray[Any] = column_or_1d(y, warn=True)
    check_consistent_length(found, np.empty(rows))
    return found
