"""Opacus with this accountant and this arithmetic, with the real package, at toy size."""

import copy
import ctypes
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import veilgrad

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")
from opacus.accountants.utils import get_noise_multiplier  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from veilgrad.opacus import PrivateTraining, make_private, register  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
CRITERION = nn.CrossEntropyLoss()


def loss(module, batch):
    return CRITERION(module(batch[0]), batch[1])


def points(records=60):
    torch.manual_seed(1)
    inputs = torch.randn(records, 4)
    return TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def private(module=None, dataset=None, **options) -> PrivateTraining:
    torch.manual_seed(2)
    module = module or nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    settings = dict(rate=0.3, steps=6, noise_multiplier=1.0, clip=1.0, denominator=18, chunk=8, probe=loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return make_private(module=module, optimizer=optimizer, dataset=dataset or points(), **(settings | options))


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone()


def one_pass(module, optimizer, loader):
    for batch in loader:
        optimizer.zero_grad()
        loss(module, batch).backward()
        optimizer.step()


class TestAccountant:
    def test_epsilon_is_ours_bit_for_bit(self):
        register()
        register()  # twice is once
        engine = opacus.PrivacyEngine(accountant="veilgrad")
        for _ in range(100):
            engine.accountant.step(noise_multiplier=1.1, sample_rate=0.01)
        for _ in range(50):
            engine.accountant.step(noise_multiplier=0.9, sample_rate=0.02)
        rounds = [veilgrad.Round.poisson(0.01, 1.1, 100), veilgrad.Round.poisson(0.02, 0.9, 50)]
        assert engine.get_epsilon(1e-5) == veilgrad.epsilon(rounds, 1e-5).epsilon
        assert engine.get_epsilon(1e-5) == veilgrad.epsilon(rounds, 1e-5).epsilon  # asking changes nothing
        assert len(engine.accountant) == 150

    def test_nothing_costs_nothing_and_no_noise_costs_everything(self):
        register()
        engine = opacus.PrivacyEngine(accountant="veilgrad")
        assert engine.get_epsilon(1e-5) == 0
        engine.accountant.step(noise_multiplier=0.0, sample_rate=0.01)
        assert engine.get_epsilon(1e-5) == math.inf

    def test_training_with_the_privacy_engine(self):
        register()
        engine = opacus.PrivacyEngine(accountant="veilgrad")
        module = nn.Linear(4, 2)
        module, optimizer, loader = engine.make_private_with_epsilon(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=DataLoader(points(), batch_size=10),
            target_epsilon=3.0, target_delta=1e-3, epochs=2, max_grad_norm=1.0)
        for _ in range(2):
            one_pass(module, optimizer, loader)
        assert 2.9 < engine.get_epsilon(1e-3) <= 3.0
        state = copy.deepcopy(engine.accountant.state_dict())
        other = opacus.PrivacyEngine(accountant="veilgrad")
        other.accountant.load_state_dict(state)
        assert other.get_epsilon(1e-3) == engine.get_epsilon(1e-3)

    def test_their_search_finds_our_noise(self):
        register()
        found = get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.0043, steps=14040, accountant="veilgrad")
        best = veilgrad.calibrate(3.0, 1e-5, rate=0.0043, rounds=14040).noise_multiplier
        assert best <= found <= best * 1.01


class TestExactTraining:
    def test_sums_are_those_of_opacus_up_to_noise(self):
        # With next to no noise, one step with every record is the clipped gradient's: the slow obvious one beside it.
        data = points(20)
        module = nn.Linear(4, 2)
        torch.manual_seed(2)
        expected = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for features, label in data:
            module.zero_grad()
            CRITERION(module(features[None]), label[None]).backward()
            gradients = [parameter.grad.clone() for parameter in module.parameters()]
            norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
            for total, gradient in zip(expected, gradients, strict=True):
                total += gradient * min(1.0, 0.2 / float(norm))
        module.zero_grad()
        before = [parameter.detach().clone() for parameter in module.parameters()]
        one_pass(*private(module, data, rate=1.0, steps=1, noise_multiplier=1e-3, clip=0.2, denominator=20)[:3])
        for was, parameter, total in zip(before, module.parameters(), expected, strict=True):
            assert torch.allclose(parameter, was - 0.1 * total / 20, atol=1e-4)

    def test_a_claim_is_that_of_what_was_charged(self):
        module, optimizer, loader, run = private()
        one_pass(module, optimizer, loader)
        one_pass(module, optimizer, loader)
        assert optimizer.releases == 6 and optimizer.numerics == "exact"
        found = run.claim(delta=1e-5)
        expected = veilgrad.epsilon(veilgrad.Round.poisson(0.3, 1.0, 6), 1e-5).epsilon
        # The noise on the grid of integers is a little larger than asked for.
        assert expected * (1 - 1e-6) <= found.epsilon <= expected * 1.001
        with pytest.raises(veilgrad.VeilgradError, match="planned steps are used"):
            next(iter(loader))

    def test_one_bad_record_leaves_weights_finite(self):
        for bad in (math.nan, math.inf, 1e38):
            data = points()
            data.tensors[0][7] = bad
            module, optimizer, loader, _ = private(dataset=data, rate=1.0, steps=2)
            one_pass(module, optimizer, loader)
            assert torch.isfinite(weights(module)).all()
            assert optimizer.releases == 1

    def test_a_bad_record_contributes_zero(self):
        def step(data):
            module, optimizer, loader, _ = private(dataset=data, rate=1.0, steps=1, noise_multiplier=1e-4)
            one_pass(module, optimizer, loader)
            return weights(module)

        bad, without = points(20), points(20)
        bad.tensors[0][7] = math.nan
        without = TensorDataset(*(torch.cat([tensor[:7], tensor[8:]]) for tensor in without.tensors))
        assert torch.allclose(step(bad), step(without), atol=1e-4)

    def test_samples_of_nobody_are_steps_like_any_other(self):
        module, optimizer, loader, _ = private(rate=1e-9, steps=4)
        loader._steps_per_pass = 4
        before = weights(module)
        batches = 0
        for batch in loader:
            batches += 1
            assert len(batch[0]) == 8
            optimizer.zero_grad()
            loss(module, batch).backward()
            optimizer.step()
        assert batches == 4 and optimizer.releases == 4
        assert not torch.equal(before, weights(module))  # noise

    def test_every_batch_has_the_same_shape(self):
        module, optimizer, loader, _ = private()
        shapes = set()
        for features, labels in loader:
            shapes.add((features.shape, labels.shape))
            loss(module, (features, labels)).backward()
            optimizer.step()
        assert shapes == {(torch.Size([8, 4]), torch.Size([8]))}

    def test_groups_per_layer(self):
        groups = [veilgrad.Group("first", "0.*", 0.5, average=18), veilgrad.Group("last", "2.*", 2.0, average=18)]
        module, optimizer, loader, run = private(groups=groups, clip=None, denominator=None)
        one_pass(module, optimizer, loader)
        found = run.claim(delta=1e-5).epsilon
        assert found == pytest.approx(veilgrad.epsilon(veilgrad.Round.poisson(0.3, 1.0, 6), 1e-5).epsilon, rel=1e-3)
        with pytest.raises(ValueError, match="of their own"):
            private(groups=groups)
        with pytest.raises(ValueError, match="give clip and denominator"):
            private(clip=None)

    def test_gradients_of_whole_batches_are_never_left_in_parameters(self):
        module, optimizer, loader, _ = private()
        for batch in loader:
            loss(module, batch).backward()
            assert all(parameter.grad is None for parameter in module.parameters())
            optimizer.step()

    def test_parameters_that_are_frozen_or_not_used_get_no_gradient(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.frozen, self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
                self.frozen.requires_grad_(False)

            def forward(self, x):
                return self.used(self.frozen(x))

        model = Model()
        frozen, unused = weights(model.frozen), weights(model.unused)
        module, optimizer, loader, _ = private(model)
        one_pass(module, optimizer, loader)
        assert torch.equal(frozen, weights(model.frozen))
        assert not torch.equal(unused, weights(model.unused))  # its sum is noise alone

    def test_half_precision_and_schedulers(self):
        module = nn.Linear(4, 2).to(torch.bfloat16)
        data = TensorDataset(points().tensors[0].to(torch.bfloat16), points().tensors[1])
        module, optimizer, loader, _ = private(module, data)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        one_pass(module, optimizer, loader)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert weights(module).dtype == torch.bfloat16 and torch.isfinite(weights(module)).all()


class TestMisuse:
    def test_a_second_step_is_refused(self):
        module, optimizer, loader, _ = private()
        batch = next(iter(loader))
        loss(module, batch).backward()
        optimizer.step()
        with pytest.raises(veilgrad.Consumed, match="once for each batch"):
            optimizer.step()

    def test_a_skipped_batch_is_refused(self):
        module, optimizer, loader, _ = private()
        batches = iter(loader)
        loss(module, next(batches)).backward()
        with pytest.raises(veilgrad.VeilgradError, match="not called for the batch before"):
            next(batches)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_batch_of_an_earlier_pass_is_refused_and_does_not_enter_the_sample_of_a_later_one(self, workers):
        numbers = torch.arange(1.0, 51.0)[:, None].expand(50, 4).contiguous()
        data = TensorDataset(numbers, torch.zeros(50, dtype=torch.long))
        module, optimizer, loader, _ = private(dataset=data, rate=0.9, steps=4, num_workers=workers, probe=None)
        earlier = iter(loader)
        next(earlier)
        later = iter(loader)
        batch = next(later)
        with pytest.raises(veilgrad.Consumed, match="another pass"):
            next(earlier)
        loss(module, batch).backward()
        optimizer.step()
        for batch in later:
            # Rows of records are not 0; padding is.
            assert optimizer._current.rows == int((batch[0][:, 0] > 0).sum())
            loss(module, batch).backward()
            optimizer.step()

    def test_the_last_batch_cannot_be_skipped_either(self):
        module, optimizer, loader, _ = private(rate=1.0, steps=1, chunk=64)
        with pytest.raises(veilgrad.VeilgradError, match="not called for the batch before"):
            for _ in loader:
                pass

    def test_a_sample_that_was_left_is_never_released(self):
        module, optimizer, loader, _ = private(rate=0.9)
        for _ in range(2):
            for batch in loader:
                loss(module, batch).backward()
                optimizer.step()
                break
        assert optimizer.releases == 0

    def test_step_before_backward_or_before_the_loader_is_refused(self):
        module, optimizer, loader, _ = private()
        with pytest.raises(veilgrad.Consumed):
            optimizer.step()
        next(iter(loader))
        with pytest.raises(veilgrad.VeilgradError, match="backward"):
            optimizer.step()

    def test_two_backward_passes_are_refused(self):
        module, optimizer, loader, _ = private()
        batch = next(iter(loader))
        loss(module, batch).backward()
        with pytest.raises(veilgrad.VeilgradError, match="one backward pass"):
            loss(module, batch).backward()

    def test_other_rows_than_those_of_the_batch_are_refused(self):
        module, optimizer, loader, _ = private()
        features, labels = next(iter(loader))
        loss(module, (features[:5], labels[:5])).backward()
        with pytest.raises(veilgrad.VeilgradError, match="all 8 rows"):
            optimizer.step()

    def test_closures_are_refused(self):
        module, optimizer, loader, _ = private()
        loss(module, next(iter(loader))).backward()
        with pytest.raises(veilgrad.Unsupported, match="closure"):
            optimizer.step(lambda: 0.0)

    def test_parameters_cannot_be_exchanged(self):
        module, optimizer, loader, _ = private()
        loss(module, next(iter(loader))).backward()
        optimizer.param_groups[0]["params"].pop()
        with pytest.raises(veilgrad.VeilgradError, match="changed"):
            optimizer.step()

    def test_batch_memory_manager_is_refused_clearly(self):
        module, optimizer, loader, _ = private()
        with pytest.raises(veilgrad.Unsupported, match="BatchMemoryManager"):
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as _:
                pass

    def test_models_that_mix_records_are_refused(self):
        with pytest.raises(Exception, match="BatchNorm"):
            private(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))

    def test_nothing_to_train_is_refused(self):
        module = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module.requires_grad_(False)
        with pytest.raises(ValueError, match="nothing to train"):
            make_private(module=module, optimizer=optimizer, dataset=points(), rate=0.1, steps=1, noise_multiplier=1.0, clip=1.0, denominator=1)

    def test_private_twice_is_refused(self):
        module, optimizer, _, _ = private()
        with pytest.raises(veilgrad.Unsupported):
            make_private(module=nn.Linear(4, 2), optimizer=optimizer, dataset=points(), rate=0.1, steps=1, noise_multiplier=1.0, clip=1.0, denominator=1)
        with pytest.raises(veilgrad.Unsupported):
            private(module)

    @pytest.mark.parametrize("name", ["run", "optimizer", "loader"])
    def test_nothing_is_copied_or_pickled(self, name):
        training = private()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(getattr(training, name))
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled|pickle"):
                copied(training)
        one_pass(*training[:3])

    @pytest.mark.parametrize("fork", [os.fork, lambda: ctypes.PyDLL(None).fork()], ids=["os.fork", "libc.fork"])
    @pytest.mark.parametrize("what", ["step", "next batch", "new pass"])
    def test_a_forked_child_neither_steps_nor_draws(self, fork, what):
        # One thread: those of torch's own pool do not survive a fork.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        module, optimizer, loader, _ = private(rate=0.5, chunk=64, probe=None)
        batches = iter(loader)
        loss(module, next(batches)).backward()
        before = weights(module)
        child = fork()
        if child == 0:
            code = 1
            try:
                if what != "step":
                    optimizer._abandon()
                {"step": optimizer.step, "next batch": lambda: next(batches), "new pass": lambda: next(iter(loader))}[what]()
            except veilgrad.OtherProcess:
                code = 0
            except BaseException:
                code = 2
            os._exit(code if torch.equal(before, weights(module)) else 3)
        assert os.waitpid(child, 0)[1] == 0
        optimizer.step()
        assert optimizer.releases == 1
        torch.set_num_threads(threads)

    def test_quantile_groups_are_refused(self):
        groups = [veilgrad.Group("gradient", "*", 1.0, average=18), veilgrad.Group.quantile("median", "gradient", 0.5, 18, 0.01)]
        with pytest.raises(veilgrad.Unsupported, match="'median' is a quantile"):
            private(groups=groups, clip=None, denominator=None)

    def test_datasets_without_an_index_are_refused(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(points())

        with pytest.raises(veilgrad.Unsupported, match="IterableDataset"):
            private(dataset=Stream())

    @pytest.fixture
    def process_group(self, tmp_path):
        if not torch.distributed.is_available():
            pytest.skip("torch was built without torch.distributed")
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()

    @pytest.mark.parametrize("wrapper", ["DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"])
    @pytest.mark.parametrize("nested", [False, True])
    def test_models_of_several_processes_are_refused(self, process_group, wrapper, nested):
        from torch.distributed import device_mesh, fsdp

        if wrapper == "fully_shard":
            mesh = device_mesh.init_device_mesh("cpu", (1,))
            model, name = fsdp.fully_shard(nn.Linear(4, 2), mesh=mesh), "FSDPModule"
        elif wrapper == "FullyShardedDataParallel":
            model, name = fsdp.FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu")), wrapper
        else:
            model, name = getattr(nn.parallel, wrapper)(nn.Linear(4, 2)), wrapper
        with pytest.raises(veilgrad.Unsupported, match=f"{name} is not supported: .*in one process"):
            private(nn.Sequential(model) if nested else model)


class Mixing(nn.Module):
    """Every row sees the mean of all."""

    def __init__(self, strength):
        super().__init__()
        self.linear, self.strength = nn.Linear(4, 2), strength

    def forward(self, x):
        return self.linear(x) + self.strength * x.mean()


class TestProbe:
    def test_rows_that_mix_are_unverified(self):
        for strength in (1.0, 1e-7):
            assert private(Mixing(strength)).optimizer.numerics == "unverified"

    def test_without_a_probe_numerics_are_unverified(self):
        assert private(probe=None).optimizer.numerics == "unverified"

    def test_a_loss_that_mixes_records_is_unverified(self):
        assert private(probe=lambda module, batch: loss(module, batch) ** 2).optimizer.numerics == "unverified"

    def test_dropout_is_no_mixing_and_comes_back(self):
        module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        module, optimizer, _, _ = private(module)
        assert optimizer.numerics == "exact"
        assert module._module[1].training

    def test_it_leaves_weights_and_gradients_as_they_were(self):
        torch.manual_seed(5)
        plain = nn.Linear(4, 2)
        before = weights(plain)
        private(plain)
        assert torch.equal(before, weights(plain))
        assert all(parameter.grad is None and parameter.grad_sample is None and parameter.grad_factors is None for parameter in plain.parameters())

    def test_convolutions_in_fixed_chunks_are_isolated(self):
        module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2))
        data = TensorDataset(torch.randn(40, 1, 4, 4), torch.zeros(40, dtype=torch.long))
        assert private(module, data, chunk=32).optimizer.numerics == "exact"


class TestWorkers:
    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_workers_give_the_same_records_as_none(self, context):
        seen = []
        data = TensorDataset(torch.arange(50.0)[:, None].expand(50, 4).contiguous(), torch.zeros(50, dtype=torch.long))
        module, optimizer, loader, run = private(dataset=data, rate=1.0, steps=2, num_workers=2, probe=None)
        loader._batches.multiprocessing_context = context
        for _ in range(2):
            for batch in loader:
                seen += batch[0][:, 0].tolist()
                loss(module, batch).backward()
                optimizer.step()
        assert optimizer.releases == 2
        # All records in order, then padding, in each of both passes.
        assert seen == 2 * (list(np.arange(50.0)) + 6 * [0.0])
        assert run.claim(delta=1e-5).epsilon > 0


SCRIPT = """
    import os, signal, sys, torch, veilgrad
    from torch import nn
    from torch.utils.data import TensorDataset
    from veilgrad.opacus import make_private

    path, kill_at = sys.argv[1], int(sys.argv[2])
    module = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(50, 4), torch.zeros(50, dtype=torch.long))
    module, optimizer, loader, run = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), dataset=data, rate=0.2, steps=20, noise_multiplier=2.0,
        clip=1.0, denominator=10, ledger=path, name="points", budget=(50.0, 1e-5), charge_ahead=5, chunk=16)
    for step in range(4):
        for batch in loader:
            nn.functional.cross_entropy(module(batch[0]), batch[1]).backward()
            if optimizer.releases == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            before = optimizer.releases
            optimizer.step()
            if optimizer.releases > before:
                os.write(1, b"released\\n")
"""


@pytest.mark.parametrize("kill_at", [0, 5, 12])
def test_kill_between_charge_and_release_never_undercharges(tmp_path, kill_at):
    path = tmp_path / "points.ledger"
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), str(kill_at)], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    released = ran.stdout.count("released")
    assert released == kill_at
    charged = 5 * (kill_at // 5 + 1)
    claim = veilgrad.claim(path)
    assert claim.spent >= veilgrad.epsilon(veilgrad.Round.poisson(0.2, 2.0, charged), 1e-5).epsilon * (1 - 1e-6)
    # The ledger goes on, and adds up.
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), "-1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert veilgrad.claim(path).spent > claim.spent


def test_a_budget_is_a_hard_stop(tmp_path):
    options = dict(ledger=tmp_path / "points.ledger", name="points", budget=(1.0, 1e-5), steps=50)
    with pytest.raises(veilgrad.BudgetExhausted):
        one_pass(*private(**options)[:3])


