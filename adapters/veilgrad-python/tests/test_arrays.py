"""Arrays of any layout are read as what they mean, or refused."""

import numpy as np
import pytest

from veilgrad import Group, Plan, Run, Sampler

ALL = Sampler.all()
D = 100
# Small enough that norms above 1.05 are misreadings: with 0.02, noise alone would make one in fifteen.
NOISE = 0.002
PLAN = Plan({"x": D}, [Group("x", "x", 1.0)], NOISE)


def released(fill):
    with Run() as run:
        (permit,) = run.reserve(PLAN, ALL, 1)
        with permit.draw(ALL, 1000) as sample:
            total = sample.begin(PLAN)
            fill(total)
            return total.release().vector("x", "float64")


def rows(kind=np.float32):
    """One long record among short ones: read in the wrong order, every record would have a part of it."""
    values = np.zeros((D, D), kind)
    values[0] = 100.0
    return values


LAYOUTS = {
    "C": rows(),
    "float64": rows(np.float64),
    "Fortran": np.asfortranarray(rows()),
    "Fortran float64": np.asfortranarray(rows(np.float64)),
    "transposed": rows().T.copy().T,
    "strided": np.repeat(np.repeat(rows(), 2, axis=0), 3, axis=1)[::2, ::3],
    "backwards": rows()[::-1, ::-1].copy()[::-1, ::-1],
    "offset": np.concatenate([np.ones((1, D), np.float32), rows()])[1:],
    "subclass": rows().view(np.matrix),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_one_record_sum_has_at_most_the_clip_norm(layout):
    values = LAYOUTS[layout]
    assert np.array_equal(np.asarray(values), rows())
    expected = np.full(D, 0.1)
    found = released(lambda total: total.add_batch(values))
    assert np.linalg.norm(found) <= 1.05, layout
    assert np.allclose(found, expected, atol=0.02), layout


def test_read_only_arrays_are_read():
    values = rows()
    values.flags.writeable = False
    assert np.linalg.norm(released(lambda total: total.add_batch(values))) <= 1.05


def test_overlapping_arrays_are_the_records_that_they_show():
    # Every record is the same memory, shifted by one number.
    line = np.zeros(2 * D, np.float32)
    line[D - 1] = 100.0
    windows = np.lib.stride_tricks.sliding_window_view(line, D)[:D]
    found = released(lambda total: total.add_batch(windows))
    assert np.allclose(found, 1.0, atol=0.02)
    same = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (3, D), (0, 0))
    assert np.allclose(released(lambda total: total.add_batch(same)), 0.3, atol=0.02)


def test_unaligned_arrays_are_copied():
    memory = bytearray(4 * D * D + 1)
    values = np.frombuffer(memory, np.float32, D * D, offset=1).reshape(D, D)
    assert not values.flags.aligned
    values[:] = rows()
    assert np.linalg.norm(released(lambda total: total.add_batch(values))) <= 1.05


def test_one_record_of_any_layout():
    wide = np.zeros((D, 2), np.float64)
    wide[:, 0] = 100.0
    for record in [wide[:, 0], np.full(D, 100.0, np.float32), [100.0] * D]:
        found = released(lambda total, record=record: total.add([record]))
        assert np.allclose(found, 0.1, atol=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, D), np.float16),
        np.zeros((2, D), np.int32),
        np.zeros((2, D), np.int64),
        np.zeros((2, D), bool),
        np.zeros((2, D), np.complex64),
        np.zeros((2, D), np.longdouble),
        np.zeros((2, D), ">f4" if np.little_endian else "<f4"),
        np.zeros((2, D), object),
        np.zeros((2, D), "U1"),
        np.ma.masked_array(np.zeros((2, D)), mask=True),
        np.zeros((2, D), [("x", "f4")]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_other_numbers_are_refused(wrong):
    with pytest.raises(TypeError):
        released(lambda total: total.add_batch(wrong))


def test_bfloat16_is_refused():
    types = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError):
        released(lambda total: total.add_batch(np.zeros((2, D), types.bfloat16)))


@pytest.mark.parametrize("shape", [(2, D + 1), (2, D - 1), (D,), (2, 1, D), (2, 10, 10), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError):
        released(lambda total: total.add_batch(np.zeros(shape)))


def test_names_and_numbers_must_fit():
    zeros = np.zeros((2, D))
    for wrong in [{"y": zeros}, {}, [zeros, zeros], {"x": zeros, "y": zeros}]:
        with pytest.raises(ValueError):
            released(lambda total, wrong=wrong: total.add_batch(wrong))
    with pytest.raises(ValueError, match="weights"):
        released(lambda total: total.add_batch(zeros, weights=np.ones(3)))


def test_records_that_are_not_finite_contribute_zero():
    bad = np.zeros((6, D), np.float64)
    bad[0, 0], bad[1, 1], bad[2, 2] = np.nan, np.inf, -np.inf
    bad[3, 3], bad[4, 4], bad[5, 5] = 1e300, -1e300, 5e-324
    assert np.linalg.norm(released(lambda total: total.add_batch(bad))) <= 0.05
    assert np.linalg.norm(released(lambda total: total.add_batch(np.zeros((0, D))))) <= 0.05
