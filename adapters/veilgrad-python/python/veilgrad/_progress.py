"""A progress bar, where somebody can see it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int], object]


class Bar:
    """Writes rounds done and time left to stderr, over the last line. Nothing in it depends on data."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, done: int, rounds: int) -> None:
        share = done / max(rounds, 1)
        filled = int(24 * share)
        left = (time.monotonic() - self._start) * (1 - share) / max(share, 1e-9)
        bar = "#" * filled + "." * (24 - filled)
        end = "\n" if done >= rounds else ""
        sys.stderr.write(f"\r[{bar}] {done}/{rounds} rounds, {left:.0f} s left   {end}")
        sys.stderr.flush()


def chosen(progress: bool | Progress | None) -> Progress | None:
    """What is called with the rounds that are done: by default a bar on a terminal or in a notebook."""
    if progress is None:
        progress = sys.stderr.isatty() or "ipykernel" in sys.modules
    if isinstance(progress, bool):
        return Bar() if progress else None
    return progress
