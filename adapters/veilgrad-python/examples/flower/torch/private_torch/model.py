"""A small network on made-up data: which of two rings a point lies on."""

from __future__ import annotations

import torch
from torch import nn


def network() -> nn.Module:
    """The model; the first round starts from the same one everywhere."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def points(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of one user, and the ring of each."""
    generator = torch.Generator().manual_seed(seed)
    rings = torch.randint(0, 2, (count,), generator=generator)
    directions = nn.functional.normalize(torch.randn(count, 2, generator=generator))
    return directions * (0.5 + rings[:, None]) + 0.1 * torch.randn(count, 2, generator=generator), rings
