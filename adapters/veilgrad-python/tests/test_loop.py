"""A custom loop: what is summed, what is charged, what is refused."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import veilgrad
from veilgrad import Group, Metric, Plan, Run, Sampler

ALL = Sampler.all()


def released(plan, fill, *, sampler=ALL, records=1000, adjacency="add-remove"):
    """The estimates of one round."""
    with Run(adjacency=adjacency) as run:
        for permit in run.reserve(plan, sampler, 1):
            with permit.draw(sampler, records) as sample:
                total = sample.begin(plan)
                fill(total)
                return total.release()


def test_a_sum_is_the_sum_of_clipped_records_and_noise():
    plan = Plan({"w": (2, 3), "b": 2}, [Group("w", "w", 1.0), Group("b", "b", 0.5)], 0.01)
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(500, 2, 3)), rng.normal(size=(500, 2))
    w[7, 0, 0] = np.nan  # a bad record counts nowhere
    good = np.isfinite(w).all(axis=(1, 2))

    def clipped(rows, clip):
        rows = rows[good].reshape(good.sum(), -1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows * np.minimum(1, clip / norms)).sum(axis=0)

    expected = clipped(w, 1.0), clipped(b, 0.5)
    ways = {
        "batch": lambda total: total.add_batch({"w": w, "b": b}),
        "list": lambda total: total.add_batch([w, b]),
        "flat": lambda total: total.add_batch([w.reshape(500, 6), b]),
        "one by one": lambda total: [total.add({"w": x, "b": y}) for x, y in zip(w, b, strict=True)],
        "single": lambda total: total.add_batch([w.astype(np.float32), b.astype(np.float32)]),
    }
    for name, fill in ways.items():
        found = released(plan, fill)
        assert found["w"].shape == (2, 3) and found["w"].dtype == np.float32
        assert found.vector("w", "float64").dtype == np.float64
        # Noise 0.01 sqrt(2) on sums; six deviations.
        assert np.allclose(found["w"].ravel(), expected[0], atol=0.1), name
        assert np.allclose(found["b"], expected[1], atol=0.05), name


def test_large_batches_on_several_threads_are_the_same_sum():
    plan = Plan({"x": 3000}, [Group("x", "x", 1.0)], 0.001)
    rows = np.random.default_rng(2).normal(size=(400, 3000)).astype(np.float32)
    expected = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0)
    for threads in [1, 2, 5]:
        with Run() as run:
            (permit,) = run.reserve(plan, ALL, 1)
            with permit.draw(ALL, 400) as sample:
                total = sample.begin(plan, threads=threads)
                total.add_batch(rows[:399])
                total.add(rows[399])
                found = total.release()["x"]
        assert np.allclose(found, expected, atol=0.01)


def test_sums_merge():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 0.001)
    with Run() as run:
        (permit,) = run.reserve(plan, ALL, 1)
        with permit.draw(ALL, 2) as sample:
            one, other = sample.begin(plan), sample.begin(plan)
            one.add([[0.25]])
            other.add([[0.5]])
            one.merge(other)
            with pytest.raises(veilgrad.Consumed):
                other.add([[1.0]])
            assert abs(float(one.release()["x"][0]) - 0.75) < 0.01


def test_averages_weights_quantiles_and_metrics_are_groups():
    loss, accuracy = Metric.loss(4.0), Metric.accuracy()
    plan = Plan(
        dict([("x", 2), loss.vector, accuracy.vector]),
        [
            Group("x", "x", 1.0, average_over=("count", 10.0), weighted=2.0),
            Group.weight("count", 2.0),
            Group.quantile("median", "x", 0.5, 100, 0.01),
            loss.group(100),
            accuracy.group(100),
        ],
        0.001,
    )
    x = np.tile([0.3, 0.4], (100, 1))

    def fill(total):
        arrays = {"x": x, "loss": loss.encode(np.full(100, 3.0)), "accuracy": accuracy.encode(np.ones(100))}
        total.add_batch(arrays, weights=np.full(100, 2.0))

    found = released(plan, fill, records=100)
    assert np.allclose(found["x"], [0.3, 0.4], atol=0.01)
    assert abs(found.scalar("count") - 200) < 1
    assert abs(found.scalar("median") - 1.0) < 0.05
    assert abs(loss.decode(found)[0] - 3.0) < 0.05 and abs(accuracy.decode(found)[0] - 1.0) < 0.05
    before = plan.clip_norm("x")
    plan.adapt(found)
    assert plan.clip_norm("x") < before


def test_joint_clipping_scales_back():
    plan = Plan({"a": 1, "b": 1}, [Group("j", ["a", "b"], 1.0, scales=[1.0, 100.0])], 0.001)
    found = released(plan, lambda total: total.add({"a": [0.0], "b": [100.0]}))
    assert abs(float(found["b"][0]) - 100.0) < 1.0


@pytest.mark.parametrize(
    ("sampler", "records", "adjacency"),
    [
        (lambda: Sampler.poisson(0.3), 50, "add-remove"),
        (lambda: Sampler.fixed(50, 10), 50, "replace-one"),
        (lambda: Sampler.truncated(0.3, 50, 12), 50, "replace-one"),
        (lambda: Sampler.allocation(5), 50, "replace-one"),
        (lambda: Sampler.shuffle(50, 10), 50, "replace-one"),
        (Sampler.all, 50, "add-remove"),
    ],
)
def test_every_sampler_draws_what_its_event_says(sampler, records, adjacency):
    sampler = sampler()
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    event = plan.rounds(sampler, 5)
    with Run(adjacency=adjacency, plan=event) as run:
        seen = []
        for permit in run.reserve(plan, sampler, 5):
            with permit.draw(sampler, records) as sample:
                ids = sample.ids()
                assert ids.dtype == np.int64 and np.all(np.diff(ids) > 0)
                assert len(ids) == 0 or 0 <= ids[0] and ids[-1] < records
                seen.append(ids)
        policy = event["sampling"]["policy"]
        if policy in ("fixed", "shuffle"):
            assert all(len(ids) == 10 for ids in seen)
        if policy in ("allocation", "shuffle"):
            assert sorted(np.concatenate(seen)) == list(range(50))
        if policy == "truncated-poisson":
            assert max(map(len, seen)) <= 12
        assert run.claim(1e-5).epsilon == veilgrad.epsilon(event, 1e-5, adjacency=adjacency).epsilon


def test_the_number_of_records_stays_private_under_add_remove():
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0), Sampler.fixed(50, 10)
    with Run() as run, pytest.raises(veilgrad.VeilgradError, match="private"):
        run.reserve(plan, sampler, 1)


def test_a_planned_run_charges_its_plan_and_nothing_else():
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0), Sampler.poisson(0.1)
    with Run(plan=plan.rounds(sampler, 3)) as run:
        assert len(list(run.reserve(plan, sampler, 3))) == 3
        with pytest.raises(veilgrad.VeilgradError, match="plan"):
            run.reserve(plan, sampler, 1)
        claim = run.claim(1e-5)
        assert claim.epsilon == veilgrad.epsilon(plan.rounds(sampler, 3), 1e-5).epsilon
        assert any("unverified" in condition for condition in claim.conditions)
    with Run(plan=plan.rounds(sampler, 3), numerics="exact") as run:
        assert run.claim(1e-5).conditions == []


def test_a_durable_ledger_keeps_the_budget(tmp_path):
    ledger = tmp_path / "ledger.db"
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 2.0), Sampler.poisson(0.1)
    event = plan.rounds(sampler, 10)
    cost = veilgrad.epsilon(event, 1e-5).epsilon
    terms = dict(ledger=ledger, dataset="d", epsilon=1.05 * cost, delta=1e-5)
    with Run(**terms, plan=event) as run:
        assert repr(run) == 'Run("d")'
        for permit in run.reserve(plan, sampler, 10):
            with permit.draw(sampler, 20) as sample:
                assert sample.begin(plan).release().charged_to == "durable"
        assert run.claim().epsilon == cost
    with pytest.raises(veilgrad.BudgetExhausted):
        Run(**terms, plan=event)
    assert issubclass(veilgrad.BudgetExhausted, veilgrad.VeilgradError)
    found = veilgrad.claim(ledger, "d")
    assert found.epsilon == cost == veilgrad.claim(ledger).spent
    with pytest.raises(ValueError, match="ledger"):
        veilgrad.epsilon(ledger, 1e-5)
    out = subprocess.run(
        [sys.executable, "-m", "veilgrad", "account", ledger, "--delta", "1e-5", "--json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(out.stdout)["guarantee"]["epsilon"] == cost


KILLED = """
import os, signal, sys
import veilgrad
from veilgrad import Group, Plan, Run, Sampler

plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 2.0), Sampler.poisson(0.1)
run = Run(ledger=sys.argv[1], dataset="d", epsilon=100.0, delta=1e-5)
done = 0
for permit in run.reserve(plan, sampler, 4):
    with permit.draw(sampler, 20) as sample:
        total = sample.begin(plan)
        if done == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        total.release()
        done += 1
"""


@pytest.mark.parametrize("done", [0, 1, 3])
def test_what_was_charged_stays_charged_after_kill(tmp_path, done):
    ledger = tmp_path / "ledger.db"
    found = subprocess.run([sys.executable, "-c", KILLED, ledger, str(done)])
    assert found.returncode == -9
    out = subprocess.run(
        [sys.executable, "-m", "veilgrad", "account", ledger, "--delta", "1e-5", "--json"],
        capture_output=True,
        check=True,
    )
    # All four rounds, before the first of them was drawn.
    assert json.loads(out.stdout)["steps"] == 4
    assert veilgrad.claim(ledger).spent > 0


def test_ctrl_c_ends_the_wait_for_a_busy_ledger(tmp_path):
    ledger = tmp_path / "ledger.db"
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 2.0), Sampler.poisson(0.1)
    terms = dict(ledger=ledger, dataset="d", epsilon=100.0, delta=1e-5)
    Run(**terms).close()
    (anchor,) = tmp_path.glob("ledger.db*anchor*")
    with anchor.open("rb") as lock:
        # As another process does while it charges.
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = ledger.read_bytes()
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            Run(**terms, patience=30.0)
        assert 0.4 < time.monotonic() - start < 10
    # The abandoned wait opens no run afterwards, and the ledger goes on.
    time.sleep(0.5)
    assert ledger.read_bytes() == before
    with Run(**terms, plan=plan.rounds(sampler, 1)) as run:
        assert len(list(run.reserve(plan, sampler, 1))) == 1


def test_statistics_of_batch_norm_are_a_group_beside_the_gradient():
    # Inputs far from 0 and of unequal width. The statistics that normalise them are released with the gradients, and used
    # from the next round on: a record never sees the others of its batch.
    rng = np.random.default_rng(4)
    x = rng.uniform([4.0, -6.0], [6.0, 0.0], (2000, 2))
    y = (x[:, 0] - 5 > (x[:, 1] + 3) / 3).astype(float)
    groups = [
        Group("gradient", ["w", "b"], 1.0, average=200),
        # Beyond the norms of centred records, so that clipping keeps their mean.
        Group("statistics", ["mean", "square"], 15.0, average=200),
    ]
    plan = Plan({"w": 2, "b": 1, "mean": 2, "square": 2}, groups, 0.5)
    sampler = Sampler.poisson(0.1)
    w, b, mean, variance = np.zeros(2), 0.0, np.zeros(2), np.ones(2)
    with Run(plan=plan.rounds(sampler, 150)) as run:
        for permit in run.reserve(plan, sampler, 150):
            with permit.draw(sampler, len(x)) as sample:
                ids = sample.ids()
                z = (x[ids] - mean) / np.sqrt(variance + 1e-3)
                error = 1 / (1 + np.exp(-(z @ w + b))) - y[ids]
                total = sample.begin(plan)
                centred = x[ids] - mean
                total.add_batch({"w": error[:, None] * z, "b": error[:, None], "mean": centred, "square": centred**2})
                estimates = total.release()
            w, b = w - estimates["w"], b - estimates["b"][0]
            mean = mean + 0.1 * estimates["mean"]
            variance = np.maximum(0.9 * variance + 0.1 * estimates["square"], 0.01)
        assert run.claim(1e-5).epsilon == veilgrad.epsilon(plan.rounds(sampler, 150), 1e-5).epsilon
    # The noise on a statistic of one round is 0.5 sqrt(2) 15 / 200 = 0.05.
    assert np.allclose(mean, [5.0, -3.0], atol=0.3) and np.allclose(variance, [1 / 3, 3.0], atol=0.5)
    z = (x - mean) / np.sqrt(variance + 1e-3)
    assert ((z @ w + b > 0) == (y > 0)).mean() > 0.85


def test_leaving_the_block_keeps_the_charge():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run(plan=plan.rounds(ALL, 1)) as run:
        (permit,) = run.reserve(plan, ALL, 1)
        with pytest.raises(ZeroDivisionError), permit.draw(ALL, 1) as sample:
            total = sample.begin(plan)
            raise ZeroDivisionError
        with pytest.raises(veilgrad.Consumed):
            total.release()
        assert run.claim(1e-5).spent == veilgrad.epsilon(plan.rounds(ALL, 1), 1e-5).epsilon


def test_parameters_out_of_range_are_refused():
    good = [Group("x", "x", 1.0)]
    for wrong in [
        lambda: Group("x", "x", -1.0),
        lambda: Group("x", "x", float("nan")),
        lambda: Group("x", ["x"], 1.0, scales=[1.0, 2.0]),
        lambda: Group("x", "x", 1.0, average=0.0),
        lambda: Group("x", "x", 1.0, average=1.0, average_over=("c", 1.0)),
        lambda: Plan({}, good, 1.0),
        lambda: Plan({"y": 1}, good, 1.0),
        lambda: Plan({"x": 0}, good, 1.0),
        lambda: Plan({"x": 1}, good, None),
        lambda: Plan({"x": 1}, good, 0.0),
        lambda: Plan({"x": (1 << 40, 1 << 40)}, good, 1.0),
        lambda: Plan({"x": 1}, good, 1.0, allocation="magic"),
        lambda: Sampler.poisson(0.0),
        lambda: Sampler.fixed(10, 11),
        lambda: Run(unit="person"),
        lambda: Run(adjacency="add"),
        lambda: Run(ledger="ledger.db"),
        lambda: Run(epsilon=1.0),
    ]:
        with pytest.raises(ValueError):
            wrong()
