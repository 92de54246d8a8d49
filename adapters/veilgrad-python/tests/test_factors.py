"""Matrices that come as two factors: the same sums as if they were written out."""

import math

import numpy as np
import pytest

from veilgrad import Group, Plan, Run, Sampler

ALL = Sampler.all()
PLAN = Plan({"w": (3, 5), "b": 3}, [Group("all", "*", 1.0)], 1e-4)
RNG = np.random.default_rng(18)


def released(fill, plan=PLAN):
    with Run() as run:
        (permit,) = run.reserve(plan, ALL, 1)
        with permit.draw(ALL, 1000) as sample:
            total = sample.begin(plan)
            fill(total)
            estimates = total.release()
            return np.concatenate([estimates[name].ravel() for name in estimates.keys()])


def batch(records=40, scale=1.0):
    return [(scale * RNG.normal(size=(records, side))).astype(np.float32) for side in (3, 5, 3)]


def both(left, right, bias):
    written = {"w": np.einsum("ni,nj->nij", left, right), "b": bias}
    return written, {"w": (left, right), "b": bias}


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e6])
def test_factors_give_the_sums_of_what_they_stand_for(scale):
    written, factors = both(*batch(scale=scale))
    expected = sum(
        np.concatenate([w.ravel(), b]) * min(1, 1 / np.sqrt((w.astype(float) ** 2).sum() + (b.astype(float) ** 2).sum()))
        for w, b in zip(written["w"], written["b"], strict=True)
    )
    for arrays in (written, factors):
        assert np.allclose(released(lambda total, arrays=arrays: total.add_batch(arrays)), expected, atol=0.01)


def test_several_batches_and_written_ones_add_up():
    (written, factors), (others, other_factors) = both(*batch()), both(*batch())

    def mixed(total):
        total.add_batch(factors)
        total.add_batch(others)
        total.add_batch(other_factors)

    def plain(total):
        for arrays in (written, others, others):
            total.add_batch(arrays)

    assert np.allclose(released(mixed), released(plain), atol=0.02)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_a_bad_record_contributes_zero(bad):
    left, right, bias = batch()
    _, good = both(left[1:], right[1:], bias[1:])
    for array in (left, right, bias):
        spoiled = [values.copy() for values in (left, right, bias)]
        next(values for values in spoiled if np.array_equal(values, array))[0, 1] = bad
        _, factors = both(*spoiled)
        if math.isfinite(bad):
            assert np.isfinite(released(lambda total, factors=factors: total.add_batch(factors))).all()
        else:
            found = released(lambda total, factors=factors: total.add_batch(factors))
            assert np.allclose(found, released(lambda total: total.add_batch(good)), atol=0.01)


def test_one_record_has_at_most_the_clip_norm_in_any_layout():
    left, right, bias = batch(records=1, scale=1e3)
    for change in (np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: x.astype(np.float64)):
        _, factors = both(change(left), change(right), change(bias))
        assert np.linalg.norm(released(lambda total, factors=factors: total.add_batch(factors))) <= 1.05


def test_misfits_are_refused():
    left, right, bias = batch()
    for arrays, why in [
        ({"w": (left, right)}, "all vectors"),
        ({"w": (left,), "b": bias}, "two factors"),
        ({"w": (right, left), "b": bias}, "shape"),
        ({"w": (left, right), "b": (bias, bias)}, "two factors"),
        ({"w": (left[1:], right), "b": bias}, "differ in their number"),
        ({"w": (left, right), "c": bias}, "missing"),
    ]:
        with pytest.raises(ValueError, match=why):
            released(lambda total, arrays=arrays: total.add_batch(arrays))
    with pytest.raises(ValueError, match="no weights"):
        released(lambda total: total.add_batch({"w": (left, right), "b": bias}, np.ones(40)))
    square = Plan({"v": (3, 5), "w": (3, 5)}, [Group("all", "*", 1.0)], 1e-4)

    def other_vectors(total):
        written = np.einsum("ni,nj->nij", left, right)
        total.add_batch({"v": (left, right), "w": written})
        total.add_batch({"v": written, "w": (left, right)})

    with pytest.raises(ValueError, match="same vectors"):
        released(other_vectors, square)
