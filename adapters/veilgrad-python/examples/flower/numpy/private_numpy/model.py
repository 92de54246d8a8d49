"""Logistic regression on made-up data: whether a point lies above a plane that all users share."""

from __future__ import annotations

import numpy as np

FEATURES = 20
PLANE = np.random.default_rng(1).normal(size=FEATURES)


def points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The points of one user, and which of them lie above the plane."""
    inputs = np.random.default_rng(seed).normal(size=(count, FEATURES)).astype(np.float32)
    return inputs, (inputs @ PLANE > 0).astype(np.float32)


def initial() -> dict[str, np.ndarray]:
    """The model that the first round starts from."""
    return {"weights": np.zeros(FEATURES, np.float32), "bias": np.zeros(1, np.float32)}


def probabilities(model: dict[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """How probable it is that each point lies above the plane."""
    return 1 / (1 + np.exp(-(inputs @ model["weights"] + model["bias"])))


def train(model: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray, epochs: int = 2, rate: float = 0.5) -> None:
    """Local gradient descent in batches of 10."""
    for _ in range(epochs):
        for first in range(0, len(inputs), 10):
            x, y = inputs[first : first + 10], labels[first : first + 10]
            error = (probabilities(model, x) - y).astype(np.float32)
            model["weights"] -= rate * error @ x / len(x)
            model["bias"] -= rate * error.mean()
