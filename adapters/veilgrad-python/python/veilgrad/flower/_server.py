"""Server optimizers: how the model moves by a released average of updates (Reddi et al., arXiv 2003.00295).

They see released values only, so whatever they do costs no privacy. The average is a direction to go in, not a gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
#: What an optimizer remembers about one array of the model, by name.
State = dict[str, Floats]


class ServerOptimizer(ABC):
    """Moves an array of the model by the released average of its updates."""

    #: The names of the arrays of its state, each of the shape of the model's array.
    remembers: ClassVar[tuple[str, ...]] = ()

    def begin(self, shape: tuple[int, ...]) -> State:
        """The state before the first round."""
        return {name: np.zeros(shape, np.float32) for name in self.remembers}

    @abstractmethod
    def step(self, average: Floats, state: State) -> Floats:
        """What to add to the array. Changes the state."""


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """Adds the average, times `learning_rate`; with `momentum`, a decaying sum of all averages so far.

    >>> optimizer = Sgd(learning_rate=0.5, momentum=0.9)
    >>> state = optimizer.begin((1,))
    >>> average = np.ones(1, np.float32)
    >>> [round(float(optimizer.step(average, state)[0]), 3) for _ in range(3)]
    [0.5, 0.95, 1.355]
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    remembers = ("velocity",)

    def __post_init__(self) -> None:
        _check(self.learning_rate, momentum=self.momentum)

    def step(self, average: Floats, state: State) -> Floats:
        velocity = state["velocity"]
        velocity *= np.float32(self.momentum)
        velocity += average
        return velocity * np.float32(self.learning_rate)


@dataclass(frozen=True)
class _Scaled(ServerOptimizer):
    """Divides a decaying mean of averages by the root of a second moment, plus `tau`."""

    learning_rate: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3
    remembers = ("mean", "square")

    def __post_init__(self) -> None:
        _check(self.learning_rate, beta1=self.beta1, beta2=getattr(self, "beta2", 0.0))
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise ValueError(f"tau {self.tau} is not above 0")

    def begin(self, shape: tuple[int, ...]) -> State:
        """The second moment begins at tau squared, as in the paper."""
        return {"mean": np.zeros(shape, np.float32), "square": np.full(shape, self.tau**2, np.float32)}

    def step(self, average: Floats, state: State) -> Floats:
        mean, square = state["mean"], state["square"]
        mean *= np.float32(self.beta1)
        mean += np.float32(1 - self.beta1) * average
        self._second_moment(square, average * average)
        return np.asarray(np.float32(self.learning_rate) * mean / (np.sqrt(square) + np.float32(self.tau)), np.float32)

    @abstractmethod
    def _second_moment(self, square: Floats, new: Floats) -> None:
        """Changes the second moment in place, by the squared averages of this round."""


@dataclass(frozen=True)
class Adam(_Scaled):
    """FedAdam: the second moment is a decaying mean."""

    beta2: float = 0.99

    def _second_moment(self, square: Floats, new: Floats) -> None:
        square *= np.float32(self.beta2)
        square += np.float32(1 - self.beta2) * new


@dataclass(frozen=True)
class Yogi(_Scaled):
    """FedYogi: the second moment moves towards the squared average by a step that does not depend on its own size."""

    beta2: float = 0.99

    def _second_moment(self, square: Floats, new: Floats) -> None:
        square -= np.float32(1 - self.beta2) * new * np.sign(square - new)


@dataclass(frozen=True)
class Adagrad(_Scaled):
    """FedAdagrad: the second moment is a sum. `beta1` is 0 by default, as in the paper."""

    beta1: float = 0.0

    def _second_moment(self, square: Floats, new: Floats) -> None:
        square += new


def _check(learning_rate: float, **decays: float) -> None:
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate {learning_rate} is not above 0")
    for name, value in decays.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} {value} is not in [0, 1)")
