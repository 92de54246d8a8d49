"""Curves of rounds, if matplotlib is there.

>>> import matplotlib
>>> matplotlib.use("svg")
>>> import veilgrad
>>> axes = profile(veilgrad.Round.poisson(0.01, 1.0, rounds=100))
>>> axes.get_xlabel()
'epsilon'
"""

from __future__ import annotations

from typing import Any

from veilgrad import _accounting


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    import matplotlib.pyplot

    return matplotlib.pyplot.subplots()[1]


def profile(rounds: _accounting.Rounds, axes: Any = None, **options: Any) -> Any:
    """Delta at each epsilon, never too small. `options` are those of `veilgrad.profile`."""
    axes = _axes(axes)
    axes.semilogy(*_accounting.profile(rounds, **options))
    axes.set(xlabel="epsilon", ylabel="delta")
    return axes


def tradeoff(rounds: _accounting.Rounds, axes: Any = None, **options: Any) -> Any:
    """The largest true positive rate of any attack at each false positive rate."""
    axes = _axes(axes)
    axes.plot(*_accounting.tradeoff(rounds, **options))
    axes.set(xlabel="false positive rate", ylabel="true positive rate, at most")
    return axes


def spent(rounds: _accounting.Rounds, delta: float, axes: Any = None, **options: Any) -> Any:
    """Epsilon after every round."""
    axes = _axes(axes)
    axes.plot(*_accounting.spent(rounds, delta, **options))
    axes.set(xlabel="rounds", ylabel=f"epsilon at delta {delta:g}")
    return axes
