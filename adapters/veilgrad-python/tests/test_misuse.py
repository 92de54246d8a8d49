"""What cannot be done: copies, pickles, forks, second uses, two threads at once."""

import copy
import ctypes
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest

import veilgrad
from veilgrad import Group, Metric, Plan, Run, Sampler

POISSON = Sampler.poisson(0.5)


def everything():
    """One object of every class, in the middle of a round."""
    group = Group("x", "x", 1.0)
    plan = Plan({"x": 3}, [group], 1.0)
    run = Run()
    permits = run.reserve(plan, POISSON, 4)
    permit, used = next(permits), next(permits)
    sample = used.draw(POISSON, 10)
    total = sample.begin(plan)
    estimates = next(permits).draw(POISSON, 10).begin(plan).release()
    return {
        "Group": group,
        "Plan": plan,
        "Sampler": POISSON,
        "Metric": Metric.accuracy(),
        "Run": run,
        "Permits": permits,
        "Permit": permit,
        "Sample": sample,
        "Sum": total,
        "Estimates": estimates,
    }


NAMES = sorted(everything())


def test_every_class_is_here():
    classes = {name for name in veilgrad.__all__ if isinstance(getattr(veilgrad, name), type)}
    capabilities = {
        name for name in classes if issubclass(getattr(veilgrad, name), veilgrad.Capability)
    }
    assert capabilities - {"Capability"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_copied_or_pickled(name):
    thing = everything()[name]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            pickle.dumps(thing, protocol)
    for make in (copy.copy, copy.deepcopy, lambda x: copy.deepcopy({"inside": [x]})):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            make(thing)
    if name != "Run":
        with pytest.raises(TypeError):
            type(thing).__new__(type(thing))
    with pytest.raises(TypeError):
        type("Mine", (type(thing),), {})


def use(things, name):
    """The first thing that anybody does with an object."""
    plan, run = things["Plan"], things["Run"]
    return {
        "Group": lambda: Plan({"x": 3}, [things["Group"]], 1.0),
        "Plan": lambda: plan.noise_multiplier,
        "Sampler": lambda: Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0).rounds(things["Sampler"]),
        "Metric": lambda: things["Metric"].group(10),
        "Run": lambda: run.claim(1e-5),
        "Permits": lambda: next(things["Permits"]),
        "Permit": lambda: things["Permit"].draw(POISSON, 10),
        "Sample": lambda: things["Sample"].ids(),
        "Sum": lambda: things["Sum"].release(),
        "Estimates": lambda: things["Estimates"]["x"],
    }[name]()


def fork_in_c():
    """A fork that Python does not see: its hooks do not run."""
    return ctypes.PyDLL(None).fork()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fork", [getattr(os, "fork", None), fork_in_c], ids=["os.fork", "libc.fork"])
def test_a_forked_child_uses_nothing(name, fork):
    things = everything()
    child = fork()
    if child == 0:
        code = 1
        try:
            use(things, name)
        except veilgrad.OtherProcess:
            code = 0
        except BaseException:
            code = 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    # The parent goes on.
    use(things, name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("fork", [getattr(os, "fork", None), fork_in_c], ids=["os.fork", "libc.fork"])
def test_a_forked_child_adds_nothing_and_closes_nothing(fork):
    things = everything()
    with things["Run"] as run:
        child = fork()
        if child == 0:
            caught = 0
            for attempt in (
                lambda: things["Sum"].add([np.zeros(3)]),
                lambda: things["Sum"].add_batch([np.zeros((2, 3))]),
                lambda: things["Sample"].begin(things["Plan"]),
                lambda: run.reserve(things["Plan"], POISSON, 1),
                lambda: run.close(),
                lambda: things["Plan"].adapt(things["Estimates"]),
            ):
                try:
                    attempt()
                except veilgrad.OtherProcess:
                    caught += 1
            run.__exit__(None, None, None)
            os._exit(0 if caught == 6 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(run.reserve(things["Plan"], POISSON, 1))) == 1


def child_of_a_pool(_):
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0), Sampler.poisson(0.5)
    with Run() as run:
        (permit,) = run.reserve(plan, sampler, 1)
        with permit.draw(sampler, 10) as sample:
            return float(sample.begin(plan).release()["x"][0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_children_that_make_their_own_objects_have_their_own_noise():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(child_of_a_pool, range(8), chunksize=1)
    assert len(set(found)) == 8


def test_everything_is_used_once():
    things = everything()
    plan = things["Plan"]
    things["Permit"].draw(POISSON, 10)
    with pytest.raises(veilgrad.Consumed):
        things["Permit"].draw(POISSON, 10)
    second = things["Sample"].begin(plan)
    things["Sum"].release()
    for attempt in (
        lambda: things["Sum"].release(),
        lambda: things["Sum"].add([np.zeros(3)]),
        lambda: things["Sum"].add_batch([np.zeros((1, 3))]),
        lambda: things["Sample"].ids(),
        lambda: things["Sample"].begin(plan),
        lambda: second.release(),
    ):
        with pytest.raises(veilgrad.Consumed):
            attempt()
    things["Run"].close()
    for attempt in (lambda: things["Run"].close(), lambda: things["Run"].reserve(plan, POISSON, 1)):
        with pytest.raises(veilgrad.Consumed):
            attempt()


def test_a_permit_is_for_the_sampler_that_was_charged():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run() as run:
        (permit,) = run.reserve(plan, POISSON, 1)
        with pytest.raises(veilgrad.VeilgradError, match="permit is for"):
            permit.draw(Sampler.poisson(0.6), 10)


def test_a_sum_is_released_as_it_was_charged():
    plan, other = (Plan({"x": 1}, [Group("x", "x", 1.0)], z) for z in (1.0, 2.0))
    with Run() as run:
        (permit,) = run.reserve(other, POISSON, 1)
        with permit.draw(POISSON, 10) as sample, pytest.raises(veilgrad.VeilgradError, match="charge"):
            sample.begin(plan).release()


def test_a_sum_of_another_sample_does_not_merge():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run() as run:
        one, other = (permit.draw(POISSON, 10) for permit in run.reserve(plan, POISSON, 2))
        with pytest.raises(veilgrad.VeilgradError):
            one.begin(plan).merge(other.begin(plan))


def test_two_threads_cannot_use_a_sum_at_once():
    plan = Plan({"x": 200_000}, [Group("x", "x", 1.0)], 1.0)
    batch = np.zeros((400, 200_000), np.float32)
    with Run() as run:
        (permit,) = run.reserve(plan, Sampler.all(), 1)
        with permit.draw(Sampler.all(), 1000) as sample:
            total = sample.begin(plan, threads=1)
            started = threading.Event()

            def add():
                started.set()
                total.add_batch(batch)

            thread = threading.Thread(target=add)
            thread.start()
            started.wait()
            refused = 0
            while thread.is_alive():
                try:
                    total.add([batch[0]])
                except veilgrad.VeilgradError as error:
                    assert "another thread" in str(error)
                    refused += 1
            thread.join()
            assert refused > 0
            total.release()


def test_threads_that_race_to_release_get_one_release():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run() as run:
        for permit in run.reserve(plan, POISSON, 20):
            total = permit.draw(POISSON, 10).begin(plan)
            outcomes, barrier = [], threading.Barrier(4)

            def release():
                barrier.wait()
                try:
                    total.release()
                    outcomes.append("released")
                except veilgrad.VeilgradError:
                    outcomes.append("refused")

            threads = [threading.Thread(target=release) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert sorted(outcomes) == ["refused"] * 3 + ["released"]


def race(*attempts):
    """What the attempts, begun at the same moment by a thread each, returned or raised."""
    found, barrier = [None] * len(attempts), threading.Barrier(len(attempts))

    def run(place, attempt):
        barrier.wait()
        try:
            found[place] = attempt()
        except veilgrad.VeilgradError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(attempts)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return found


def refusals(found):
    """Those that were refused, each with a message that says why."""
    errors = [each for each in found if isinstance(each, veilgrad.VeilgradError)]
    for error in errors:
        assert isinstance(error, veilgrad.Consumed) or "another thread is using this" in str(error), error
    return errors


RECORDS = 200_000


def test_threads_that_race_for_a_permit_get_one_sample():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run() as run:
        for permit in run.reserve(plan, POISSON, 20):
            samplers = [Sampler.poisson(0.5) for _ in range(4)]
            found = race(*(lambda sampler=sampler: permit.draw(sampler, RECORDS) for sampler in samplers))
            assert len(refusals(found)) == 3
            # What was drawn is whole.
            (sample,) = [each for each in found if isinstance(each, veilgrad.Sample)]
            sample.begin(plan).release()


def test_threads_that_race_for_a_sampler_get_one_sample_and_keep_the_other_permits():
    plan, sampler = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0), Sampler.poisson(0.5)
    refused = 0
    with Run() as run:
        for attempt in range(1000):
            if attempt >= 20 and refused:  # threads meet by chance
                break
            permits = list(run.reserve(plan, sampler, 4))
            found = race(*(lambda permit=permit: permit.draw(sampler, RECORDS) for permit in permits))
            for permit, each in zip(permits, found, strict=True):
                if isinstance(each, veilgrad.Sample):
                    with pytest.raises(veilgrad.Consumed):
                        permit.draw(sampler, RECORDS)
                else:
                    assert "another thread is using this sampler" in str(each)
                    permit.draw(sampler, RECORDS)
                    refused += 1
            assert len(refusals(found)) <= 3
    assert refused > 0


def test_threads_that_race_for_permits_never_get_the_same_one():
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 1.0)
    with Run() as run:
        permits = run.reserve(plan, POISSON, 400)

        def take():
            numbers = []
            while True:
                try:
                    numbers.append(next(permits).number)
                except StopIteration:
                    return numbers
                except veilgrad.VeilgradError as error:
                    assert "another thread is using this" in str(error)

        found = race(*[take] * 4)
        assert sorted(sum(found, [])) == list(range(400))


def test_threads_that_race_for_a_run_never_charge_beyond_its_plan(tmp_path):
    plan = Plan({"x": 1}, [Group("x", "x", 1.0)], 2.0)
    refused = 0
    for attempt in range(200):
        if attempt >= 10 and refused:  # threads meet by chance
            break
        # A durable charge waits for the disk, and other threads run meanwhile.
        terms = dict(ledger=tmp_path / f"{attempt}.db", dataset="d", epsilon=100.0, delta=1e-5)
        with Run(**terms, plan=plan.rounds(POISSON, 3)) as run:
            found = race(*[lambda: run.reserve(plan, POISSON, 3)] * 4)
            granted = [each for each in found if isinstance(each, veilgrad.Permits)]
            # Whoever comes later finds the plan used up.
            others = [each for each in found if each not in granted]
            assert all("another thread is using this run" in str(each) or "plan" in str(each) for each in others)
            assert len(granted) == 1 and len(list(granted[0])) == 3
            assert run.claim().epsilon == veilgrad.epsilon(plan.rounds(POISSON, 3), 1e-5).epsilon
            refused += sum("another thread" in str(each) for each in others)
    assert refused > 0


def test_threads_that_race_to_close_a_run_close_it_once():
    for _ in range(20):
        run = Run()
        found = race(*[run.close] * 4)
        assert len(refusals(found)) == 3


def test_arrays_that_change_meanwhile_do_not_break_the_bound():
    plan = Plan({"x": 1000}, [Group("x", "x", 1.0)], 0.02)
    values = np.zeros((64, 1000), np.float32)
    stop = threading.Event()

    def scribble():
        while not stop.is_set():
            values[:] = 1e6
            values[:] = 0.0

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        with Run() as run:
            for permit in run.reserve(plan, Sampler.all(), 20):
                with permit.draw(Sampler.all(), 64) as sample:
                    total = sample.begin(plan, threads=1)
                    total.add_batch(values)
                    # 64 records of norm 1 at most, and noise of norm 0.02 sqrt(1000) = 0.64.
                    assert np.linalg.norm(total.release()["x"]) < 66
    finally:
        stop.set()
        thread.join()
