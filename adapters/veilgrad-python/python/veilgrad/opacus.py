"""Opacus with this accountant, or with exact arithmetic and a durable ledger too.

Two steps, each useful alone:

1. `register()`, then `opacus.PrivacyEngine(accountant="veilgrad")`: everything stays Opacus's but epsilon, which is
   certified and takes milliseconds.

   >>> import opacus, veilgrad.opacus
   >>> veilgrad.opacus.register()
   >>> engine = opacus.PrivacyEngine(accountant="veilgrad")

2. `make_private`: Opacus computes gradients per sample; sampling, clipping, sum, noise and charge are Veilgrad's. The sum
   is exact, the charge is durable before a sample is drawn, and a bad record contributes zero.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import veilgrad
from veilgrad._accounting import Adjacency

__all__ = ["ExactOptimizer", "PrivateLoader", "PrivateTraining", "VeilgradAccountant", "make_private", "register"]


class VeilgradAccountant(IAccountant):
    """An accountant of Opacus with certified bounds: epsilon is never below the truth, and tight to about 1e-7."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Notes one step."""
        last = self.history[-1] if self.history else None
        if last is not None and last[:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, last[2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Epsilon of all steps so far. Options of other accountants (orders, error bounds) have no meaning here."""
        if any(noise == 0 and steps for noise, _, steps in self.history):
            return math.inf
        rounds = [veilgrad.Round.poisson(rate, noise, steps) for noise, rate, steps in self.history]
        return veilgrad.epsilon(rounds, delta).epsilon if rounds else 0.0

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name under which `register` makes it known."""
        return "veilgrad"


def register() -> None:
    """Makes `PrivacyEngine(accountant="veilgrad")` and `get_noise_multiplier(accountant="veilgrad")` work.

    >>> from opacus.accountants.utils import get_noise_multiplier
    >>> register()
    >>> noise = get_noise_multiplier(
    ...     target_epsilon=3.0, target_delta=1e-5, sample_rate=256 / 60000, steps=14040, accountant="veilgrad"
    ... )
    >>> round(noise, 2)
    0.97
    """
    register_accountant(VeilgradAccountant.mechanism(), VeilgradAccountant, force=True)


class _PerSampleModule(GradSampleModule):
    """A `GradSampleModule` that writes out fewer gradients.

    Those of layers that are used once per pass are not copied. Those of the weights of linear layers are not computed at
    all: they are outer products of what Opacus keeps for them, which `grad_factors` holds.
    """

    def capture_backprops_hook(
        self, module: nn.Module, _forward_input: Any, forward_output: Any, loss_reduction: str, batch_first: bool
    ) -> None:
        """Called by torch after the backward pass of a layer."""
        parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        sampler = self.GRAD_SAMPLERS.get(type(module))
        used_once = all(p._forward_counter == 1 and not hasattr(p, "_current_grad_sample") for p in parameters)
        if not (self.hooks_enabled and sampler and used_once and len(module.activations) == 1):
            super().capture_backprops_hook(module, _forward_input, forward_output, loss_reduction, batch_first)
            return
        if any(p.grad_sample is not None or getattr(p, "grad_factors", None) is not None for p in parameters):
            raise veilgrad.VeilgradError("there is one backward pass for each batch of the loader, and one step()")
        activations, backprops = self.rearrange_grad_samples(
            module=module, backprops=forward_output[0].detach(), loss_reduction=loss_reduction, batch_first=batch_first
        )
        if type(module) is nn.Linear and backprops.dim() == 2:
            if module.weight.requires_grad:
                module.weight.grad_factors = (backprops, activations[0])
            if module.bias is not None and module.bias.requires_grad:
                module.bias.grad_sample = backprops
        else:
            for parameter, gradient in sampler(module, activations, backprops).items():
                parameter.grad_sample = gradient
        for parameter in parameters:
            parameter._forward_counter = 0
        del module.max_batch_len


class PrivateTraining(NamedTuple):
    """What `make_private` returns."""

    module: GradSampleModule
    optimizer: ExactOptimizer
    loader: PrivateLoader
    run: veilgrad.Run


def make_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    rate: float,
    steps: int,
    noise_multiplier: float,
    clip: float | None = None,
    denominator: float | None = None,
    groups: Sequence[veilgrad.Group] | None = None,
    probe: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    chunk: int = 64,
    loss_reduction: Literal["mean", "sum"] = "mean",
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    ledger: str | os.PathLike[str] | None = None,
    name: str | None = None,
    budget: tuple[float, float] | None = None,
    unit: str = "example",
    adjacency: Adjacency = "add-remove",
    charge_ahead: int = 32,
) -> PrivateTraining:
    """Makes a training loop of PyTorch private, with exact sums and a ledger that is charged first.

    The loop stays as it was. For every batch that the loader gives: forward, `loss.backward()`, `optimizer.step()`. A
    sample is given as batches of exactly `chunk` rows, the last one padded with zeros; `step()` adds each to the sum, and
    after the last one releases it and moves the weights. There is no need for `BatchMemoryManager`.

    Args:
        module, optimizer: Yours. Every layer must be one that Opacus has gradients per sample for.
        dataset: A map-style dataset; one index is one record.
        rate: Each record is in a sample with this probability (Poisson sampling, from the system's random numbers).
        steps: How many steps there will be at most. The ledger knows the plan from the start.
        noise_multiplier: Standard deviation of the noise over the clip norm.
        clip: The largest norm that a record's gradient contributes, all parameters together.
        denominator: What sums are divided by: a public number such as the expected batch, never the size of a sample.
        groups: Instead of `clip` and `denominator`: parameters that are clipped together, by their names in
            `module.named_parameters()`, each with a clip norm and an `average` of its own.
        probe: Computes the loss of a batch as your loop does, `probe(module, batch)`. It is run on random inputs to see
            that rows do not change each other's gradients, not even by rounding. If none do, the ledger says that
            numerics are exact; if some do, or without a probe, that they are unverified.
        chunk: Rows of a batch. Less memory and less padding if small, fewer passes if large.
        loss_reduction: Whether your loss is the mean or the sum over a batch's rows.
        collate_fn: Makes a batch of records, `default_collate` if not given.
        num_workers: Processes that read records ahead.
        ledger, name: The file of a durable ledger, and the name of the dataset in it. Without them the run is charged in
            memory and forgotten with the process.
        budget: (epsilon, delta) with which the dataset begins if it is new in the ledger.
        unit, adjacency: As in `veilgrad.Run`.
        charge_ahead: How many steps are charged at once. Those that are charged and not made stay charged.

    Returns:
        Module, optimizer, loader and run. `run.claim()` says what may be claimed.

    >>> data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.zeros(40, dtype=torch.long))
    >>> model = torch.nn.Linear(3, 2)
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> model, optimizer, loader, run = make_private(
    ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data, rate=0.1, steps=10,
    ...     noise_multiplier=1.0, clip=1.0, denominator=4, probe=lambda model, batch: loss(model(batch[0]), batch[1]))
    >>> for features, labels in loader:
    ...     optimizer.zero_grad()
    ...     loss(model(features), labels).backward()
    ...     optimizer.step()
    >>> optimizer.numerics, round(run.claim(delta=1e-5).epsilon, 1)
    ('exact', 2.9)
    """
    parameters = _parameters(module, optimizer)
    if isinstance(dataset, IterableDataset):
        raise veilgrad.Unsupported("an IterableDataset cannot be sampled: a record needs an index")
    if chunk < 1 or charge_ahead < 1 or steps < 1:
        raise ValueError("chunk, charge_ahead and steps are at least 1")
    if groups is None:
        if clip is None or denominator is None:
            raise ValueError("give clip and denominator, or groups")
        groups = [veilgrad.Group("gradient", "*", clip, average=denominator)]
    elif clip is not None or denominator is not None:
        raise ValueError("groups have clip norms and denominators of their own")
    for group in groups:
        if group.is_quantile:
            raise veilgrad.Unsupported(
                f"group {group.name!r} is a quantile: clip norms are fixed here, because the plan is charged ahead. A custom "
                "loop can move them"
            )
    plan = veilgrad.Plan({name: tuple(p.shape) or 1 for name, p in parameters.items()}, groups, noise_multiplier)
    sampler = veilgrad.Sampler.poisson(rate)

    ModuleValidator.validate(module, strict=True)
    private = _PerSampleModule(module, batch_first=True, loss_reduction=loss_reduction, strict=True)
    private.forbid_grad_accumulation()
    for parameter in parameters.values():
        # The gradient of a whole batch, which nothing clipped, is dropped as soon as it is there.
        parameter.register_post_accumulate_grad_hook(_forget)

    collate = _PaddedCollate(collate_fn or default_collate, dataset, chunk)
    numerics: Literal["exact", "unverified"] = "unverified"
    if probe is not None and isolated(private, list(parameters.values()), collate, probe):
        numerics = "exact"
    epsilon, delta = budget or (None, None)
    run = veilgrad.Run(
        ledger=ledger, dataset=name, unit=unit, adjacency=adjacency, plan=[plan.rounds(sampler, steps)],
        epsilon=epsilon, delta=delta, numerics=numerics,
    )
    exact = ExactOptimizer(optimizer, parameters, chunk, numerics)
    permits = _charged(run, plan, sampler, steps, charge_ahead)
    source = _Source(permits, plan, sampler, len(dataset), chunk)
    loader = PrivateLoader(dataset, source, collate, exact, rate, steps, num_workers)
    return PrivateTraining(private, exact, loader, run)


#: Wrappers of several devices or processes, by name: importing them would need packages that are not always there. FSDPModule
#: is what `fully_shard` makes of a class.
_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})


def _parameters(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The trained parameters by name."""
    for part in module.modules():
        for parent in type(part).__mro__:
            if parent.__name__ in _WRAPPERS or parent is GradSampleModule:
                raise veilgrad.Unsupported(f"{parent.__name__} is not supported: give the module itself, in one process")
    if isinstance(optimizer, ExactOptimizer) or hasattr(optimizer, "original_optimizer"):
        raise veilgrad.Unsupported("this optimizer is private already: give the one of torch")
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    trained: dict[str, nn.Parameter] = {}
    for parameter in _trained(optimizer):
        if id(parameter) not in names:
            raise ValueError("the optimizer has a parameter that the module has not")
        trained[names[id(parameter)]] = parameter
    if not trained:
        raise ValueError("the optimizer has no parameter that needs a gradient: there is nothing to train")
    return trained


def _trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _per_sample(parameter: Any) -> tuple[Any, ...]:
    """The gradients of a parameter per sample: one tensor, two factors, or none."""
    factors: tuple[Any, ...] = getattr(parameter, "grad_factors", None) or ()
    gradient = getattr(parameter, "grad_sample", None)
    return factors if gradient is None else (*factors, gradient)


def _clear(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        parameter.grad = parameter.grad_sample = parameter.grad_factors = None


def _charged(
    run: veilgrad.Run, plan: veilgrad.Plan, sampler: veilgrad.Sampler, steps: int, ahead: int
) -> Iterator[veilgrad.Permit]:
    """Permits for all steps, charged in blocks."""
    for first in range(0, steps, ahead):
        yield from run.reserve(plan, sampler, min(ahead, steps - first))


@dataclass(eq=False)
class _Step:
    """One sample, and the sum of what was added of it."""

    sample: veilgrad.Sample
    plan: veilgrad.Plan
    chunks: int
    sums: list[veilgrad.Sum] = field(default_factory=list)
    added: int = 0

    def total(self) -> veilgrad.Sum:
        if not self.sums:
            self.sums.append(self.sample.begin(self.plan, threads=torch.get_num_threads()))
        return self.sums[0]


@dataclass(eq=False)
class _Chunk:
    """A batch that the loader gives: some rows of one sample."""

    step: _Step
    number: int
    rows: int


class _Source:
    """Draws samples, cuts them into chunks and notes which chunk is which, in the order in which batches arrive."""

    def __init__(
        self, permits: Iterator[veilgrad.Permit], plan: veilgrad.Plan, sampler: veilgrad.Sampler, records: int, chunk: int
    ) -> None:
        self.permits, self.plan, self.sampler, self.records, self.chunk = permits, plan, sampler, records, chunk
        self.ahead: deque[_Chunk] = deque()
        self.steps = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Those of this pass, also if another pass begins.
        ahead = self.ahead
        for _ in range(self.steps):
            sample = next(self.permits).draw(self.sampler, self.records)
            ids: list[int] = sample.ids().tolist()
            # A sample of nobody is one chunk of padding: a step like any other.
            cuts = range(0, max(len(ids), 1), self.chunk)
            step = _Step(sample, self.plan, len(cuts))
            for number, first in enumerate(cuts):
                rows = ids[first : first + self.chunk]
                ahead.append(_Chunk(step, number, len(rows)))
                yield rows


class _PaddedCollate:
    """Collates records and pads every tensor with zeros to `chunk` rows."""

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: Dataset[Any], chunk: int) -> None:
        self.collate, self.chunk = collate, chunk
        # One record is read for its shapes and types, which are public; its numbers are not kept.
        self.template = _map(lambda tensor: tensor.new_zeros((chunk, *tensor.shape[1:])), collate([dataset[0]]))

    def __call__(self, records: list[Any]) -> Any:
        if not records:
            return _map(torch.clone, self.template)
        return _map(self._pad, self.collate(records))

    def _pad(self, tensor: torch.Tensor) -> torch.Tensor:
        missing = self.chunk - len(tensor)
        if missing == 0:
            return tensor
        return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


def _map(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _map(change, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(change, value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_map(change, value) for value in batch)
    raise veilgrad.Unsupported(f"batches are tensors in tuples, lists and dicts; this one has {type(batch).__name__}")


class _NotCopied:
    """Refuses copies and pickles, as all objects of a round do."""

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: there is one of each")


class PrivateLoader(_NotCopied):
    """Gives batches of one fixed shape, each bound to the sample that it is of.

    One pass is `round(1 / rate)` steps, as with Opacus; together there are `steps`. Batches are used in order: the loader
    refuses to go on when one was skipped, because whether it was may depend on records, and then all others of its sample
    would depend on them too.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        source: _Source,
        collate: _PaddedCollate,
        optimizer: ExactOptimizer,
        rate: float,
        steps: int,
        num_workers: int,
    ) -> None:
        self.dataset = dataset
        self._source, self._optimizer = source, optimizer
        self._steps_per_pass, self._left = max(1, round(1 / rate)), steps
        self._batches = DataLoader(
            dataset, batch_sampler=source, collate_fn=collate, num_workers=num_workers
        )

    def __iter__(self) -> Iterator[Any]:
        if self._left == 0:
            raise veilgrad.VeilgradError("all planned steps are used")
        self._source.steps = min(self._steps_per_pass, self._left)
        # What an unfinished pass drew stays charged.
        ahead: deque[_Chunk] = deque()
        self._source.ahead = ahead
        self._optimizer._abandon()
        self._left -= self._source.steps
        for batch in self._batches:
            if ahead is not self._source.ahead:
                raise veilgrad.Consumed("another pass over the loader began: the batches of this one cannot be used")
            self._optimizer._expect(ahead.popleft())
            yield batch
        self._optimizer._finish()

    @property
    def batch_sampler(self) -> Any:
        """Refused: the loader limits its batches itself."""
        raise veilgrad.Unsupported(
            "this loader cannot be wrapped in another (BatchMemoryManager, PrivacyEngine): batches have `chunk` rows already"
        )


class ExactOptimizer(_NotCopied, torch.optim.Optimizer):
    """Clips and adds gradients per sample in exact arithmetic, adds noise once per sample, and lets the wrapped optimizer
    move the weights by what was released."""

    def __init__(
        self,
        original: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        chunk: int,
        numerics: Literal["exact", "unverified"],
    ) -> None:
        # As Opacus does it: the wrapped optimizer holds all state.
        self.original_optimizer = original
        self._parameters, self._chunk = dict(parameters), chunk
        self._current: _Chunk | None = None
        self._abandoned = False
        #: Whether the isolation probe found that rows do not change each other's gradients.
        self.numerics = numerics
        #: How many samples were released: the steps that moved the weights.
        self.releases = 0

    def _expect(self, chunk: _Chunk) -> None:
        self._finish()
        self._current = chunk

    def _finish(self) -> None:
        """Refuses to go on if the last batch was not used."""
        if self._current is not None:
            raise veilgrad.VeilgradError(
                "optimizer.step() was not called for the batch before this one. Whether a batch is skipped may depend on "
                "its records, and no noise hides that"
            )

    def _abandon(self) -> None:
        self._current = None

    def step(self, closure: Any = None) -> None:
        """Adds the gradients of the current batch; after the last batch of a sample, releases the sum and steps."""
        if closure is not None:
            raise veilgrad.Unsupported("closures compute gradients again, after the noise: call step() without one")
        chunk = self._current
        if chunk is None:
            raise veilgrad.Consumed("there is no batch to step with: step() is called once for each batch of the loader")
        if [id(p) for p in _trained(self.original_optimizer)] != [id(p) for p in self._parameters.values()]:
            raise veilgrad.VeilgradError("the parameters of the optimizer changed after make_private")
        arrays = self._gradients(chunk.rows)
        self._current = None
        if chunk.number != chunk.step.added:
            raise veilgrad.Consumed("a batch of this sample was skipped")
        total = chunk.step.total()
        if chunk.rows:
            total.add_batch(arrays)
        chunk.step.added += 1
        self._clear()
        if chunk.step.added == chunk.step.chunks:
            estimates = total.release()
            for name, parameter in self._parameters.items():
                gradient = torch.from_numpy(estimates[name]).view(parameter.shape)
                parameter.grad = gradient.to(parameter.device, parameter.dtype)
            self.releases += 1
            self.original_optimizer.step()

    def _gradients(self, rows: int) -> dict[str, Any]:
        """The gradients of the first rows, as arrays or, where they are outer products, as pairs of arrays."""
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            tensors = _per_sample(parameter)
            if any(not isinstance(tensor, torch.Tensor) or len(tensor) != self._chunk for tensor in tensors):
                raise veilgrad.VeilgradError(
                    f"the gradients of {name!r} are not those of the batch that the loader gave: one backward pass, over "
                    f"all {self._chunk} rows"
                )
            # Half precision has no array of numpy; every number of it is a float32.
            arrays = [tensor[:rows].detach().to("cpu", torch.float32).numpy() for tensor in tensors]
            if arrays:
                found[name] = arrays[0] if len(arrays) == 1 else tuple(arrays)
        if not found:
            raise veilgrad.VeilgradError("there are no gradients per sample: call loss.backward() before step()")
        for name, parameter in self._parameters.items():
            # Not used in the forward pass.
            if name not in found:
                found[name] = np.zeros((rows, *parameter.shape), np.float32)
        return found

    def _clear(self) -> None:
        _clear(self._parameters.values())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. The sum of the current sample stays."""
        self._clear()
        self.original_optimizer.zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refused: `BatchMemoryManager` is not needed."""
        raise veilgrad.Unsupported("batches have `chunk` rows already: use the loader without BatchMemoryManager")

    @property
    def param_groups(self) -> Any:
        """The wrapped optimizer's."""
        return self.original_optimizer.param_groups

    @property
    def state(self) -> Any:
        """The wrapped optimizer's."""
        return self.original_optimizer.state

    @property
    def defaults(self) -> Any:
        """The wrapped optimizer's."""
        return self.original_optimizer.defaults

    def state_dict(self) -> Any:
        """The wrapped optimizer's."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.original_optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"ExactOptimizer({self.original_optimizer!r})"


def isolated(
    module: GradSampleModule,
    parameters: Sequence[nn.Parameter],
    collate: _PaddedCollate,
    probe: Callable[[nn.Module, Any], torch.Tensor],
    trials: int = 3,
) -> bool:
    """Whether the gradient of a row is the same, bit by bit, whatever the other rows are and wherever it stands.

    Looks at random rows, in the shape that the loader gives: permuted, and with all other rows zero, huge or NaN. Dropout
    is off meanwhile: its masks are random, but depend on no record.
    """
    chunk = collate.chunk
    if chunk == 1:
        return True
    generator = torch.Generator().manual_seed(18)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        return torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype)

    def others(batch: Any, keep: torch.Tensor, value: float) -> Any:
        def change(tensor: torch.Tensor) -> torch.Tensor:
            changed = torch.full_like(tensor, value if tensor.is_floating_point() else 0)
            changed[keep] = tensor[keep]
            return changed

        return _map(change, batch)

    def gradients(batch: Any) -> list[torch.Tensor]:
        probe(module, batch).backward()
        found = [tensor for parameter in parameters for tensor in _per_sample(parameter)]
        _clear(parameters)
        return [gradient.detach().reshape(len(gradient), -1) for gradient in found]

    with _without_dropout(module):
        for trial in range(trials):
            batch = _map(noise, collate.template)
            before = gradients(batch)
            if not before or any(len(gradient) != chunk for gradient in before):
                return False
            order = torch.randperm(chunk, generator=generator)
            moved = gradients(_map(lambda tensor: tensor[order], batch))
            if not _same([gradient[order] for gradient in before], moved):
                return False
            keep = torch.randperm(chunk, generator=generator)[: 1 + trial * (chunk // 4)]
            for value in (0.0, 1e30, math.nan):
                alone = gradients(others(batch, keep, value))
                if not _same([g[keep] for g in before], [g[keep] for g in alone]):
                    return False
    return True


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training]
    training = module.training
    module.train()
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        module.train(training)
        for layer in layers:
            layer.train()
