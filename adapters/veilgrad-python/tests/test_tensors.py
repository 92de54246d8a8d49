"""Torch tensors in a custom loop are read as what they mean, or refused."""

import numpy as np
import pytest

from veilgrad import Group, Plan, Run, Sampler

torch = pytest.importorskip("torch")

ALL = Sampler.all()
# As in test_arrays.py: norms above 1.05 are misreadings, not noise.
D, NOISE = 100, 0.002
PLAN = Plan({"x": D}, [Group("x", "x", 1.0)], NOISE)
EXPECTED = np.full(D, 0.1)


def released(fill, plan=PLAN):
    with Run() as run:
        (permit,) = run.reserve(plan, ALL, 1)
        with permit.draw(ALL, 1000) as sample:
            total = sample.begin(plan)
            fill(total)
            return total.release()


def rows(kind=torch.float32):
    """One long record among short ones: read in the wrong order, every record would have a part of it."""
    values = torch.zeros(D, D, dtype=kind)
    values[0] = 100.0
    return values


TENSORS = {
    "float32": rows(),
    "float64": rows(torch.float64),
    "transposed": rows().T.contiguous().T,
    "strided": rows().repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
    "requires grad": rows().requires_grad_(),
    "in a graph": rows().requires_grad_() * 1.0,
    "parameter": torch.nn.Parameter(rows()),
    "part of another": torch.cat([torch.ones(1, D), rows()])[1:],
    "three axes": rows().reshape(D, 1, D)[:, 0],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_batch_of_tensors_is_the_records_that_it_shows(name):
    values = TENSORS[name]
    assert torch.equal(values.detach().float(), rows())
    for fill in (
        lambda total: total.add_batch(values),
        lambda total: total.add_batch({"x": values}),
        lambda total: total.add_batch([values]),
        lambda total: [total.add([row]) for row in values],
    ):
        found = released(fill).vector("x", "float64")
        assert np.linalg.norm(found) <= 1.05
        assert np.allclose(found, EXPECTED, atol=0.02)


def test_an_expanded_tensor_is_the_same_record_many_times():
    values = torch.full((1,), 100.0).expand(3, D)
    assert np.allclose(released(lambda total: total.add_batch(values))["x"], 0.3, atol=0.02)


def test_adding_leaves_a_tensor_in_its_graph():
    values = rows().requires_grad_()
    released(lambda total: total.add_batch(values))
    assert values.requires_grad and values.is_leaf
    values.sum().backward()
    assert torch.equal(values.grad, torch.ones(D, D))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_other_numbers_are_refused_and_the_message_says_which_are_not(kind):
    for fill in (lambda total: total.add_batch(rows(kind)), lambda total: total.add([rows(kind)[0]])):
        with pytest.raises(TypeError, match="float32 or float64"):
            released(fill)


def test_half_precision_is_added_after_a_conversion():
    assert np.allclose(released(lambda total: total.add_batch(rows(torch.bfloat16).float()))["x"], EXPECTED, atol=0.02)


def test_tensors_without_numbers_on_the_cpu_are_refused():
    for wrong in (torch.zeros(2, D, device="meta"), rows().to_sparse()):
        with pytest.raises(TypeError, match="on the CPU"):
            released(lambda total, wrong=wrong: total.add_batch(wrong))


def test_factors_may_be_tensors():
    plan = Plan({"w": (2, 3)}, [Group("w", "w", 1.0)], NOISE)
    left, right = torch.tensor([[3.0, 4.0]], requires_grad=True), torch.tensor([[0.0, 0.0, 10.0]])
    found = released(lambda total: total.add_batch({"w": (left, right)}), plan)
    assert np.allclose(found["w"], [[0.0, 0.0, 0.6], [0.0, 0.0, 0.8]], atol=0.02)
