"""JAX Privacy's training accountants with this one.

>>> from jax_privacy import accounting
>>> from veilgrad.jax_privacy import VeilgradAccountantConfig
>>> accountant = accounting.DpsgdTrainingAccountant(dp_accountant_config=VeilgradAccountantConfig())
>>> params = accounting.DpParams(noise_multipliers=1.1, num_samples=60000, delta=1e-5, batch_size=256)
>>> round(accountant.compute_epsilon(14040, params), 3)
2.38
"""

from __future__ import annotations

import dataclasses

from jax_privacy import accounting

from veilgrad.dp_accounting import VeilgradAccountant

__all__ = ["VeilgradAccountantConfig"]


@dataclasses.dataclass(kw_only=True, slots=True)
class VeilgradAccountantConfig(accounting.DpAccountantConfig):
    """A `jax_privacy.accounting.DpAccountantConfig` that makes a `VeilgradAccountant`, under add-or-remove-one as JAX
    Privacy's own do."""

    def create_accountant(self) -> VeilgradAccountant:
        """An accountant that has accounted for nothing yet."""
        return VeilgradAccountant()
