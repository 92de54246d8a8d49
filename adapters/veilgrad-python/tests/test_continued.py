"""What a loop needs that is continued in another process, and records that are differences."""

import math

import numpy as np
import pytest

import veilgrad
from veilgrad import Group, Plan, Run, Sampler

SHAPES = {"w": (2, 3), "b": 1}
QUIET = 1e-6


def released(add, plan=None):
    plan = plan or Plan(SHAPES, [Group("all", "*", 1.0)], QUIET)
    with Run() as run:
        (permit,) = run.reserve(plan, Sampler.all(), 1)
        with permit.draw(Sampler.all(), records=1000) as sample:
            total = sample.begin(plan)
            add(total)
            return total.release()


@pytest.mark.parametrize("one", ["float32", "float64"])
@pytest.mark.parametrize("other", ["float32", "float64"])
def test_a_difference_is_added_like_the_record_that_it_is(one, other):
    rng = np.random.default_rng(3)
    new = {"w": rng.normal(size=(2, 3)).astype(one), "b": rng.normal(size=1).astype(one)}
    old = {"w": (new["w"] + rng.normal(0, 0.1, (2, 3))).astype(other), "b": np.zeros(1, other)}
    new["b"][:] = 0.1
    difference = {name: (new[name].astype(np.float64) - old[name]).astype(np.float32) for name in new}
    found = released(lambda total: total.add(new, minus=old))
    expected = released(lambda total: total.add(difference))
    for name in SHAPES:
        assert np.allclose(found[name], expected[name], atol=1e-4)


def test_a_difference_that_is_not_finite_contributes_zero_and_one_of_another_shape_raises():
    big, zero = {"w": np.full((2, 3), 3e38, np.float32), "b": [0.0]}, {"w": np.zeros((2, 3)), "b": [0.0]}
    for new, old in [(big, {"w": -big["w"], "b": [0.0]}), (zero, {"w": np.full((2, 3), math.nan), "b": [0.0]})]:
        found = released(lambda total, new=new, old=old: total.add(new, minus=old))
        assert np.allclose(found["w"], 0, atol=1e-4)
    with pytest.raises(ValueError, match="shape"):
        released(lambda total: total.add(zero, minus={"w": np.zeros((3, 2)), "b": [0.0]}))


def test_a_record_is_not_left_behind_for_the_next_one():
    plan = Plan(SHAPES, [Group("all", "*", 100.0)], QUIET)

    def add(total):
        total.add({"w": np.ones((2, 3)), "b": [1.0]})
        total.add({"w": np.full((2, 3), 5.0), "b": [5.0]}, minus={"w": np.full((2, 3), 3.0), "b": [3.0]})

    assert np.allclose(released(add, plan)["w"], 3.0, atol=1e-3)


def test_groups_get_their_denominator_later_and_only_once():
    group = Group("all", "*", 1.0)
    plan = Plan(SHAPES, [group.estimating(average=4.0)], QUIET)
    found = released(lambda total: total.add({"w": np.zeros((2, 3)), "b": [0.8]}), plan)
    assert np.isclose(found["b"][0], 0.2, atol=1e-4)
    for sealed in (Group("all", "*", 1.0, average=2.0), Group.quantile("q", "all", 0.5, 10.0, 0.1)):
        with pytest.raises(ValueError, match="denominator"):
            sealed.estimating(average=4.0)
    with pytest.raises(ValueError, match="not both"):
        group.estimating(average=4.0, average_over=("count", 1.0))


def adaptive():
    groups = [Group("all", "*", 1.0), Group.quantile("norm", "all", 0.5, 1.0, 0.01)]
    return Plan(SHAPES, groups, 0.5)


def test_an_adapted_plan_is_restored_as_it_was():
    plan = adaptive()
    plan.adapt(released(lambda total: total.add({"w": np.full((2, 3), 9.0), "b": [0.0]}), plan))
    rounds, estimates = plan.adapted()
    assert rounds == 1 and estimates == {"norm": plan.clip_norm("all")} and plan.clip_norm("all") != 1.0
    again = adaptive()
    again.restore(rounds, estimates)
    assert again.adapted() == plan.adapted() and again.noise_multiplier == plan.noise_multiplier
    for wrong in ({}, {"norm": 0.001}, {"norm": math.nan}, {"norm": 1.0, "other": 2.0}):
        with pytest.raises((ValueError, veilgrad.VeilgradError)):
            again.restore(1, wrong)
    assert again.adapted() == plan.adapted()


def test_a_run_is_continued_only_with_a_ledger_that_contains_its_head(tmp_path):
    plan, sampler = Plan(SHAPES, [Group("all", "*", 1.0)], 5.0), Sampler.all()
    terms = {"dataset": "d", "epsilon": 50.0, "delta": 1e-5, "plan": plan.rounds(sampler, 2)}
    heads = []
    for name in ("one.db", "other.db"):
        with Run(ledger=tmp_path / name, **terms) as run:
            run.reserve(plan, sampler, 1)
            heads.append(run.head)
    with Run(ledger=tmp_path / "one.db", head=heads[0], **terms) as run:
        assert run.head != heads[0]
    for wrong in (heads[1], "not a head", heads[0][:-1] + ("0" if heads[0][-1] != "0" else "1")):
        with pytest.raises((ValueError, veilgrad.VeilgradError)):
            Run(ledger=tmp_path / "one.db", head=wrong, **terms)
    with pytest.raises(ValueError, match="ledger"):
        Run(head=heads[0])
    with Run() as run:
        assert run.head is None


def test_as_many_rounds_are_affordable_as_a_run_may_plan(tmp_path):
    plan, sampler, ledger = Plan(SHAPES, [Group("all", "*", 1.0)], 5.0), Sampler.all(), tmp_path / "ledger.db"
    # Two runs are accounted for as such, which rounds up a little more than one.
    budget = {"epsilon": 1.0001 * veilgrad.epsilon(plan.rounds(sampler, 10), 1e-5).epsilon, "delta": 1e-5}
    with Run(ledger=ledger, dataset="d", plan=plan.rounds(sampler, 10), **budget) as run:
        run.reserve(plan, sampler, 3)
    affordable = veilgrad._native.affordable
    assert affordable(ledger, "d", plan.rounds(sampler, 7)) == 7
    assert affordable(ledger, "d", plan.rounds(sampler, 100)) == 7
    assert affordable(ledger, "other", plan.rounds(sampler, 100)) == 100
    with pytest.raises(veilgrad.BudgetExhausted):
        Run(ledger=ledger, dataset="d", plan=plan.rounds(sampler, 8))
    Run(ledger=ledger, dataset="d", plan=plan.rounds(sampler, 7)).close()
