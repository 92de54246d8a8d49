"""`veilgrad.flower.PrivateFedAvg` on a federation in memory."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
import httpx  # noqa: E402
from google.protobuf.message import DecodeError  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

from flower_grid import FakeGrid, Node, adds, answer, trained  # noqa: E402
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

import veilgrad  # noqa: E402
from veilgrad.flower import Adagrad, Adam, Adaptive, PrivateFedAvg, ServerOptimizer, Sgd, Yogi  # noqa: E402

SHAPES = {"w": (2, 3), "b": (1,)}
#: So little noise that sums can be read: 7 coordinates of standard deviation 1e-6 times the clip norm.
QUIET = 1e-6
NOISE = 1e-4


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})


def constant(value: float) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def strategy(**changes: Any) -> PrivateFedAvg:
    settings: dict[str, Any] = {
        "rounds": 1,
        "expected_users": 2,
        "sample_rate": 1.0,
        "clip": 1.0,
        "noise_multiplier": QUIET,
        **changes,
    }
    if "groups" in changes:
        settings.pop("clip")
    return PrivateFedAvg(**settings)


def moved(nodes: dict[int, Node], timeout: float = 0.05, **changes: Any) -> dict[str, np.ndarray]:
    """How far the model moves in all rounds together."""
    result = strategy(**changes).start(FakeGrid(nodes), initial(), timeout=timeout)
    return {name: array.numpy() for name, array in result.arrays.items()}


def norm(arrays: dict[str, np.ndarray]) -> float:
    return math.sqrt(sum(float(np.sum(np.square(values, dtype=np.float64))) for values in arrays.values()))


# What clients reply: a name, what one invitation is answered with, and the largest norm that it may contribute.


def huge(value: float) -> Node:
    return lambda message: [answer(message, constant(value))]


def one_value(value: float) -> Node:
    def reply(message: Message) -> list[Message]:
        arrays = constant(0.1)
        arrays["w"][0, 0] = value
        return [answer(message, arrays)]

    return reply


def without(name: str) -> Node:
    return lambda message: [answer(message, {key: value for key, value in constant(0.1).items() if key != name})]


def shaped(shape: tuple[int, ...]) -> Node:
    return lambda message: [answer(message, {**constant(0.1), "w": np.zeros(shape, np.float32)})]


def typed(dtype: str) -> Node:
    return lambda message: [answer(message, {**constant(0.1), "w": np.zeros(SHAPES["w"], dtype)})]


def failing(message: Message) -> list[Message]:
    return [Message(Error(code=1, reason="the client crashed on user data"), reply_to=message)]


def silent(message: Message) -> list[Message]:
    return []


def raw(data: bytes, stype: str = "numpy.ndarray") -> Node:
    def reply(message: Message) -> list[Message]:
        good = answer(message, constant(0.1))
        good.content["arrays"]["w"] = Array(dtype="float32", shape=SHAPES["w"], stype=stype, data=data)
        return [good]

    return reply


def header_of(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def empty(message: Message) -> list[Message]:
    return [Message(RecordDict(), reply_to=message)]


def two_records(message: Message) -> list[Message]:
    good = answer(message, constant(0.1))
    good.content["more"] = ArrayRecord({"w": Array(np.ones(SHAPES["w"], np.float32))})
    return [good]


def twice(message: Message) -> list[Message]:
    return [answer(message, constant(100.0)), answer(message, constant(100.0))]


def uninvited(message: Message) -> list[Message]:
    """Its own reply gets lost, and others come in its place: of a node that was not asked, and of nobody."""
    replies = [answer(message, constant(100.0)), answer(message, constant(100.0))]
    for reply, node in zip(replies, (77, 0), strict=True):
        reply.metadata.__dict__["_src_node_id"] = node
    return replies


def late(message: Message) -> list[Message]:
    reply = answer(message, constant(100.0))
    reply.metadata.__dict__["_reply_to_message_id"] = "message of an earlier round"
    return [reply]


def evaluation(message: Message) -> list[Message]:
    reply = answer(message, constant(100.0))
    reply.metadata.message_type = "evaluate"
    return [reply]


def archive(message: Message) -> list[Message]:
    file = BytesIO()
    np.savez(file, w=np.ones(SHAPES["w"], np.float32))
    return raw(file.getvalue())(message)


HOSTILE: dict[str, tuple[Node, float]] = {
    "NaN": (one_value(math.nan), 0),
    "infinite": (one_value(-math.inf), 0),
    "all NaN": (huge(math.nan), 0),
    "1e30": (huge(1e30), 1),
    "largest float": (huge(float(np.finfo(np.float32).max)), 1),
    "long": (huge(50.0), 1),
    "zero": (huge(0.0), 0),
    "negative zero": (huge(-0.0), 0),
    "subnormal": (huge(1e-45), 1e-6),
    "missing array": (without("b"), 0),
    "no arrays": (empty, 0),
    "two records of arrays": (two_records, 0),
    "wrong shape": (shaped((3, 3)), 0),
    "transposed shape": (shaped((3, 2)), 0),
    "flat": (shaped((6,)), 0),
    "one axis more": (shaped((1, 2, 3)), 0),
    "no elements": (shaped((0,)), 0),
    "integers": (typed("int64"), 0),
    "booleans": (typed("bool"), 0),
    "complex": (typed("complex64"), 0),
    "text": (typed("U4"), 0),
    "crash": (failing, 0),
    "silence": (silent, 0),
    "no bytes": (raw(b""), 0),
    "other bytes": (raw(b"not an array"), 0),
    "truncated": (raw(header_of(SHAPES["w"]) + bytes(20)), 0),
    "more bytes": (raw(header_of(SHAPES["w"]) + bytes(28)), 0),
    "terabytes by header": (raw(header_of((1 << 40,))), 0),
    "endless header": (raw(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535), 0),
    "pickle": (raw(b"\x80\x04K\x01."), 0),
    "other serialization": (raw(b"", stype="torch"), 0),
    "archive": (archive, 0),
    "duplicate": (twice, 1),
    "uninvited": (uninvited, 0),
    "late": (late, 0),
    "reply to another request": (evaluation, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_client_contributes_nothing_or_at_most_its_clip(name: str) -> None:
    reply, bound = HOSTILE[name]
    honest = constant(0.2)
    change = moved({1: adds(honest), 2: reply})
    # Two users are expected, so the average is half of the sum.
    contributed = {key: 2 * change[key] - honest[key] for key in SHAPES}
    assert all(np.isfinite(values).all() for values in change.values())
    assert norm(contributed) <= bound + NOISE
    if bound == 1:
        assert norm(contributed) > 0.9


@pytest.mark.parametrize("name", ["duplicate", "late"])
def test_replies_that_are_handed_to_the_strategy_count_once_and_for_their_round(name: str) -> None:
    # `start` asks for one reply to each invitation. Whoever calls the methods of the strategy hands over what there is.
    reply, bound = HOSTILE[name]
    made, grid = strategy(), FakeGrid({1: reply})
    made._open(initial())
    identities = grid.push_messages(made.configure_train(1, initial(), ConfigRecord(), grid))
    arrays, _ = made.aggregate_train(1, grid.pull_messages(identities))
    made._close()
    contributed = norm({key: 2 * arrays[key].numpy() for key in SHAPES})
    assert abs(contributed - bound) < 0.1


class Undecodable(FakeGrid):
    """Like a SuperLink, forgets all replies that it is asked for, and then fails to decode that of node 2."""

    def pull_messages(self, message_ids: Any) -> Any:
        replies = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == 2 for reply in replies):
            raise DecodeError("Error parsing message")
        return replies


def test_a_reply_that_flower_cannot_decode_counts_as_zero_and_the_others_count() -> None:
    grid = Undecodable({1: adds(constant(0.2)), 2: adds(constant(0.2)), 3: adds(constant(0.2))})
    result = strategy(expected_users=3).start(grid, initial(), timeout=0.05)
    assert np.allclose(result.arrays["w"].numpy(), 0.2 * 2 / 3, atol=NOISE)


def test_an_error_of_the_network_ends_the_run() -> None:
    class Unplugged(FakeGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        strategy().start(Unplugged({1: adds(constant(0.2)), 2: silent}), initial(), timeout=0.05)


@pytest.mark.parametrize(("forger", "other"), [(1, 2), (2, 1)])
def test_a_reply_in_the_name_of_another_user_does_not_replace_that_users_reply(forger: int, other: int) -> None:
    class Forged(FakeGrid):
        """A node writes into its reply that it comes from another node and answers the invitation of that one."""

        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            sent = list(super().push_messages(messages))
            invitation = {message.metadata.dst_node_id: message.metadata.message_id for message in messages}
            forged = self._waiting[invitation[forger]][0].metadata.__dict__
            forged["_src_node_id"], forged["_reply_to_message_id"] = other, invitation[other]
            return sent

    grid = Forged({forger: adds(constant(-0.2)), other: adds(constant(0.2))})
    result = strategy().start(grid, initial(), timeout=0.05)
    assert np.allclose(result.arrays["w"].numpy(), 0.1, atol=NOISE)


def test_every_user_weighs_the_same_without_a_weight_bound_and_at_most_1_with_one() -> None:
    def weighing(**metrics: Any) -> Node:
        def reply(message: Message) -> list[Message]:
            good = answer(message, constant(0.2))
            good.content["metrics"] = MetricRecord(metrics)
            return [good]

        return reply

    key = "num-examples"
    for weight, expected in [(5, 0.5), (10, 1.0), (10**12, 1.0), (0, 0.0), (-3, 0.0), (math.nan, 0.0), (math.inf, 0.0), (2.5, 0.25)]:
        # Two users of the largest weight.
        change = moved({1: weighing(**{key: weight}), 2: silent}, weight_bound=10, denominator=2.0)
        assert np.allclose(change["w"], expected * 0.1, atol=NOISE), weight
        assert np.allclose(moved({1: weighing(**{key: weight}), 2: silent})["w"], 0.1, atol=NOISE)
    for metrics in [{}, {key: [1, 2]}, {"other": 3}]:
        change = moved({1: weighing(**metrics), 2: silent}, weight_bound=10, denominator=2.0)
        assert np.allclose(change["w"], 0, atol=NOISE)


def test_a_private_count_divides_by_the_users_who_replied() -> None:
    nodes = {number: adds(constant(0.1)) for number in range(6)} | {number: failing for number in range(6, 10)}
    settings = {"expected_users": 10, "denominator": "private-count"}
    assert np.allclose(moved(nodes, **settings)["w"], 0.1, atol=1e-3)
    assert np.allclose(moved(nodes, **settings, least_count=8)["w"], 0.1 * 6 / 8, atol=1e-3)
    assert np.allclose(moved(nodes, expected_users=10)["w"], 0.1 * 6 / 10, atol=1e-3)
    assert np.allclose(moved(nodes, expected_users=10, denominator=3.0)["w"], 0.1 * 6 / 3, atol=1e-3)


def test_denominators_of_weighted_averages_follow_the_expected_weight() -> None:
    # Ten users of mean weight 20, bound 100. The average of their updates, by weight, is (5 * 10 * 0.1 + 5 * 30 * 0.3) / 200.
    def weighs(update: float, weight: int) -> Node:
        return lambda message: [answer(message, constant(update), **{"num-examples": weight})]

    nodes = {number: weighs(0.1, 10) if number < 5 else weighs(0.3, 30) for number in range(10)}
    settings = {"expected_users": 10, "weight_bound": 100, "expected_weight": 20}
    for denominator in ("expected", "private-count"):
        assert np.allclose(moved(nodes, **settings, denominator=denominator)["w"], 0.25, atol=1e-3)
    # Five of the heavier ones reply: a weight of 150, when 200 are expected and at least 100 are divided by.
    some = nodes | dict.fromkeys(range(5), silent)
    assert np.allclose(moved(some, **settings)["w"], 0.3 * 150 / 200, atol=1e-3)
    assert np.allclose(moved(some, **settings, denominator="private-count")["w"], 0.3, atol=1e-3)
    # Two of the lighter ones: a weight of 20.
    few = nodes | dict.fromkeys(range(2, 10), silent)
    assert np.allclose(moved(few, **settings, denominator="private-count")["w"], 0.1 * 20 / 100, atol=1e-3)
    # Numbers count users of the largest weight.
    settings = {"expected_users": 10, "weight_bound": 100}
    assert np.allclose(moved(nodes, **settings, denominator=4.0)["w"], 0.25 * 2 / 4, atol=1e-3)
    assert np.allclose(moved(nodes, **settings, denominator="private-count", least_count=4.0)["w"], 0.25 * 2 / 4, atol=1e-3)


def test_groups_are_clipped_apart_and_their_names_are_in_the_ledger(tmp_path: Path) -> None:
    nodes: dict[int, Node] = {1: adds({"w": 100.0, "b": 0.1}), 2: silent}
    together, apart = moved(nodes), moved(nodes, groups=[veilgrad.Group("weights", "w", 1.0), veilgrad.Group("bias", "b", 1.0)])
    assert abs(float(together["b"][0])) < 1e-3 and np.isclose(apart["b"][0], 0.05, atol=NOISE)
    assert math.isclose(norm({"w": apart["w"]}), 0.5, abs_tol=NOISE)
    layers = PrivateFedAvg(rounds=1, expected_users=2, sample_rate=1.0, clip=1.0, noise_multiplier=QUIET, groups="per-layer")
    result = layers.start(FakeGrid({1: adds(constant(100.0)), 2: silent}), initial(), timeout=0.05)
    sizes = [norm({"x": result.arrays[name].numpy()}) for name in SHAPES]
    assert np.allclose(sizes, 0.5 / math.sqrt(2), atol=NOISE)
    with pytest.raises(ValueError, match="denominator"):
        moved(nodes, groups=[veilgrad.Group("all", "*", 1.0, average=3.0)])


def test_no_metric_leaves_unless_it_is_a_group_of_the_round(caplog: pytest.LogCaptureFixture) -> None:
    secret = 0.123456789
    nodes = {number: adds(constant(0.1), loss=0.5, secret=secret) for number in range(4)}
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("flwr").propagate = True
        plain = strategy(expected_users=4).start(FakeGrid(nodes), initial(), timeout=0.05)
        private = strategy(expected_users=4, metrics=[veilgrad.Metric.loss(2.0)]).start(FakeGrid(nodes), initial(), timeout=0.05)
    assert not plain.train_metrics_clientapp and not plain.evaluate_metrics_clientapp
    assert list(private.train_metrics_clientapp[1]) == ["loss"]
    assert math.isclose(private.train_metrics_clientapp[1]["loss"], 0.5, abs_tol=1e-3)
    assert "0.1234" not in caplog.text and "secret" not in caplog.text and "crashed" not in caplog.text


def test_logs_do_not_depend_on_who_replies_and_what(caplog: pytest.LogCaptureFixture) -> None:
    logs = []
    logging.getLogger("flwr").propagate = True
    for second in (adds(constant(0.2)), failing, silent, huge(math.nan)):
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            strategy().start(FakeGrid({1: adds(constant(0.2)), 2: second}), initial(), timeout=0.05)
        logs.append([record.getMessage() for record in caplog.records])
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        strategy().start(Undecodable({1: adds(constant(0.2)), 2: adds(constant(0.2))}), initial(), timeout=0.05)
    logs.append([record.getMessage() for record in caplog.records])
    assert logs[0] and all(other == logs[0] for other in logs)


def test_clients_are_not_asked_to_evaluate() -> None:
    made = strategy()
    grid = FakeGrid({1: silent})
    assert list(made.configure_evaluate(1, initial(), ConfigRecord(), grid)) == []
    assert made.aggregate_evaluate(1, []) is None


def test_a_poisson_cohort_takes_each_user_with_its_rate_and_a_fixed_one_has_its_size() -> None:
    nodes = {number: silent for number in range(1, 41)}
    grid = FakeGrid(nodes)
    settings = {"rounds": 60, "expected_users": 40, "sample_rate": 0.25, "noise_multiplier": 1.0}
    strategy(**settings).start(grid, initial(), timeout=0.001)
    sizes = [len(nodes) for nodes in grid.invited]
    # 2400 draws: 600 on average, standard deviation 21. Both bounds fail by chance with probability below 1e-9.
    assert 465 < sum(sizes) < 735 and len(set(sizes)) > 3
    grid = FakeGrid(nodes)
    strategy(**settings, cohort="fixed", adjacency="replace-one").start(grid, initial(), timeout=0.001)
    assert {len(nodes) for nodes in grid.invited} == {10}
    assert len({tuple(nodes) for nodes in grid.invited}) > 50


def test_a_fixed_cohort_is_refused_under_add_remove_with_the_reason() -> None:
    with pytest.raises(veilgrad.Unsupported, match="twice the clip norm"):
        strategy(cohort="fixed")
    too_many = {number: silent for number in range(3)}
    with pytest.raises(veilgrad.VeilgradError, match="more than the 2 declared users"):
        moved(too_many, cohort="fixed", adjacency="replace-one")


def test_absent_users_of_a_fixed_cohort_are_drawn_and_not_asked() -> None:
    grid = FakeGrid({number: silent for number in range(1, 6)})
    settings = {"rounds": 40, "expected_users": 20, "sample_rate": 0.5, "noise_multiplier": 1.0}
    strategy(**settings, cohort="fixed", adjacency="replace-one").start(grid, initial(), timeout=0.001)
    # 10 of 20 are drawn, of whom 5 are there: 2.5 of 5 on average.
    sizes = [len(nodes) for nodes in grid.invited]
    assert max(sizes) <= 5 and min(sizes) < 5 and 60 < sum(sizes) < 140


def test_a_user_with_several_nodes_is_asked_on_one_and_counts_once(tmp_path: Path) -> None:
    def owner(node: Any) -> str | None:
        return None if node.node_id == 9 else "somebody" if node.node_id < 4 else f"user {node.node_id}"

    nodes = {number: adds(constant(0.2)) for number in (1, 2, 3, 5, 9)}
    grid = FakeGrid(nodes)
    made = strategy(user_of=owner, rounds=8, run=tmp_path, budget=(1e30, 1e-5))
    made.start(grid, initial(), timeout=0.05)
    for invited in grid.invited:
        assert len(invited) == 2 and 5 in invited and 9 not in invited
    assert len({node for nodes in grid.invited for node in nodes}) > 2
    assert made.terms.unit == "user" and strategy().terms.unit == "node"


def test_the_statement_says_whether_users_or_nodes_are_protected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for unit, user_of in (("user", lambda node: node.node_id), ("node", None)):
        place = tmp_path / unit
        made = strategy(user_of=user_of, run=place, noise_multiplier=2.0, budget=(5.0, 1e-5))
        made.start(FakeGrid({1: silent}), initial(), timeout=0.01)
        assert veilgrad._native.command(["veilgrad", "statement", str(place / "ledger.db")]) == 0
        text = capfd.readouterr().out
        assert ("one user" in text) == (unit == "user")
        assert ("one node of the federation" in " ".join(text.split())) == (unit == "node")


def test_the_epsilon_of_the_ledger_is_the_one_of_the_plan(tmp_path: Path) -> None:
    delta = 1e-6
    nodes = {number: adds(constant(0.1)) for number in range(20)}
    for number, changes in enumerate(
        [
            {"noise_multiplier": 1.3},
            {"target": (2.0, delta), "noise_multiplier": None},
            {"noise_multiplier": 1.3, "adaptive": True, "denominator": "private-count", "metrics": [veilgrad.Metric.loss(1.0)]},
            {"noise_multiplier": 1.3, "cohort": "fixed", "adjacency": "replace-one"},
            {"noise_multiplier": 1.3, "weight_bound": 3.0, "expected_weight": 1.0, "charge_ahead": 4},
        ]
    ):
        made = strategy(**{
            "rounds": 10, "expected_users": 20, "sample_rate": 0.3, "run": tmp_path / str(number), "budget": (50.0, delta), **changes
        })
        planned = made.planned_epsilon(delta)
        made.start(FakeGrid(nodes), initial(), timeout=0.05)
        assert math.isclose(made.claim().epsilon, planned, rel_tol=1e-6)
        assert made.claim().spent <= planned * (1 + 1e-6)
        if "target" in changes:
            assert 1.9 < made.claim().epsilon <= 2.0


def test_a_budget_that_does_not_cover_all_rounds_refuses_the_run_before_a_client_is_asked(tmp_path: Path) -> None:
    grid = FakeGrid({1: silent})
    with pytest.raises(veilgrad.BudgetExhausted):
        strategy(rounds=100, noise_multiplier=1.0, run=tmp_path, budget=(1.0, 1e-5)).start(grid, initial(), timeout=0.1)
    assert grid.invited == []


def test_every_round_is_charged_before_a_client_is_asked(tmp_path: Path) -> None:
    spent = []

    def watching(message: Message) -> list[Message]:
        spent.append(veilgrad.claim(tmp_path / "ledger.db").spent)
        return []

    made = strategy(rounds=3, noise_multiplier=1.0, run=tmp_path, budget=(50.0, 1e-5))
    made.start(FakeGrid({1: watching}), initial(), timeout=0.01)
    one, all_three = (veilgrad.epsilon(veilgrad.Round.poisson(1.0, 1.0, rounds), 1e-5).epsilon for rounds in (1, 3))
    assert len(spent) == 3 and math.isclose(spent[0], one, rel_tol=1e-3) and math.isclose(spent[2], all_three, rel_tol=1e-3)


def test_the_clip_norm_moves_to_the_median_of_norms() -> None:
    norms = np.exp(np.linspace(-1, 1, 40))
    nodes = {n + 1: adds({"w": np.full((2, 3), size / math.sqrt(6)), "b": 0.0}) for n, size in enumerate(norms)}
    for first in (0.1, 10.0):
        clips: list[float] = []
        made = strategy(
            rounds=60, expected_users=40, sample_rate=0.9, clip=first, noise_multiplier=0.5, adaptive=Adaptive(learning_rate=0.3)
        )
        made.start(FakeGrid(nodes), initial(), timeout=0.05, evaluate_fn=lambda *_: clips.append(made.clip_norm()))
        assert clips[0] == first and 0.8 < np.mean(clips[-10:]) < 1.25


@pytest.mark.parametrize("server", [Sgd(0.5), Sgd(0.5, momentum=0.9), Adam(0.1), Yogi(0.1), Adagrad(0.1)], ids=repr)
def test_server_optimizers_follow_their_formulas(server: ServerOptimizer) -> None:
    updates = [0.3, -0.2, 0.25]
    state: dict[str, Any] = {"round": 0}

    def changing(message: Message) -> list[Message]:
        update = updates[state["round"]]
        state["round"] += 1
        return [answer(message, {name: values + np.float32(update) for name, values in trained(message).items()})]

    change = moved({1: changing}, expected_users=1, rounds=3, server=server)
    position, velocity, mean, square, tau = 0.0, 0.0, 0.0, 1e-6, 1e-3
    for update in updates:
        if isinstance(server, Sgd):
            velocity = server.momentum * velocity + update
            position += server.learning_rate * velocity
            continue
        mean = server.beta1 * mean + (1 - server.beta1) * update
        if isinstance(server, Adam):
            square = 0.99 * square + 0.01 * update**2
        elif isinstance(server, Yogi):
            square -= 0.01 * update**2 * math.copysign(1, square - update**2)
        else:
            square += update**2
        position += 0.1 * mean / (math.sqrt(square) + tau)
    assert np.allclose(change["w"], position, atol=2e-4)


def test_settings_that_make_no_sense_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rounds": 0}, "at least 1"),
        ({"expected_users": 0}, "at least 1"),
        ({"cohort": "shuffle"}, "neither"),
        ({"weight_bound": 0.0}, "above 0"),
        ({"weight_bound": 5.0}, "needs expected_weight"),
        ({"weight_bound": 5.0, "denominator": "private-count"}, "needs expected_weight"),
        ({"weight_bound": 5.0, "least_count": 1.0}, "needs expected_weight"),
        ({"weight_bound": 5.0, "expected_weight": 0.0}, "not in"),
        ({"weight_bound": 5.0, "expected_weight": 5.1}, "not in"),
        ({"weight_bound": 5.0, "expected_weight": math.nan}, "not in"),
        ({"weight_bound": 5.0, "expected_weight": 1.0, "denominator": 2.0}, "leave out one"),
        ({"weight_bound": 5.0, "expected_weight": 1.0, "denominator": "private-count", "least_count": 2.0}, "leave out one"),
        ({"expected_weight": 1.0}, "give weight_bound"),
        ({"target": (1.0, 1e-5)}, "noise_multiplier or target"),
        ({"noise_multiplier": None}, "noise_multiplier or target"),
        ({"denominator": "replies"}, "public number"),
        ({"clip": None}, "give clip"),
        ({"noise_multiplier": 0.0}, "noise multiplier"),
    ]
    for changes, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            moved({1: silent}, timeout=0.01, **changes)
    with pytest.raises(ValueError, match="planned"):
        strategy().start(FakeGrid({1: silent}), initial(), num_rounds=2)
    for optimizer, settings in [(Sgd, {"momentum": 1.0}), (Adam, {"tau": 0.0}), (Yogi, {"beta2": -0.1}), (Sgd, {"learning_rate": math.nan})]:
        with pytest.raises(ValueError, match=next(iter(settings))):
            optimizer(**settings)


def test_arrays_that_are_not_floats_stay_and_others_keep_their_types() -> None:
    arrays = ArrayRecord(
        {
            "half": Array(np.zeros(2, np.float16)),
            "steps": Array(np.array(7)),
            "double": Array(np.zeros((2, 2), np.float64)),
            "scalar": Array(np.zeros((), np.float32)),
        }
    )

    def reply(message: Message) -> list[Message]:
        new = {name: values + np.asarray(0.25, values.dtype) for name, values in trained(message).items() if name != "steps"}
        new["double"] = np.asfortranarray(new["double"])
        return [answer(message, {**new, "steps": np.array(1000)})]

    result = strategy(expected_users=1).start(FakeGrid({1: reply}), arrays, timeout=0.05)
    found = {name: array.numpy() for name, array in result.arrays.items()}
    assert list(found) == list(arrays) and found["steps"] == 7
    assert {name: str(values.dtype) for name, values in found.items()} == {
        "half": "float16", "steps": "int64", "double": "float64", "scalar": "float32",
    }
    assert all(np.allclose(found[name], 0.25, atol=1e-3) for name in ("half", "double", "scalar"))
    with pytest.raises(ValueError, match="nothing to train"):
        strategy().start(FakeGrid({1: silent}), ArrayRecord({"n": Array(np.array(1))}))


def test_arrays_in_fortran_order_and_big_endian_mean_the_same() -> None:
    pattern = np.arange(6, dtype=np.float32).reshape(2, 3) / 100

    def in_form(change: Callable[[np.ndarray], np.ndarray]) -> Node:
        return lambda message: [answer(message, {"w": change(pattern), "b": np.zeros(1, np.float32)})]

    for change in (np.asfortranarray, lambda a: a.astype(">f4"), lambda a: a.astype(np.float64), lambda a: a[::1]):
        assert np.allclose(moved({1: in_form(change)}, expected_users=1)["w"], pattern, atol=NOISE)


def test_plain_fedavg_and_ours_agree_without_noise_and_clipping() -> None:
    grid = FakeGrid({number: adds(constant(0.01 * number)) for number in range(1, 5)})
    ours = strategy(expected_users=4).start(grid, initial(), timeout=0.05)
    messages = [Message(RecordDict({"arrays": initial()}), dst_node_id=n, message_type="train") for n in grid.nodes]
    replies = [reply for n, message in zip(grid.nodes, messages, strict=True) for reply in grid.nodes[n](message)]
    theirs, _ = FedAvg().aggregate_train(1, replies)
    assert theirs is not None
    for name in SHAPES:
        assert np.allclose(ours.arrays[name].numpy(), theirs[name].numpy(), atol=NOISE)


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs/flower.md"
    found = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    for block in found:
        exec(compile(block, page.name, "exec"), {})


def test_all_users_of_a_round_are_sent_the_same() -> None:
    sent: list[Message] = []

    def keeping(message: Message) -> list[Message]:
        sent.append(message)
        return []

    strategy(expected_users=3).start(FakeGrid({1: keeping, 2: keeping, 3: keeping}), initial(), timeout=0.01)
    assert len(sent) == 3 and all(message.content is sent[0].content for message in sent)
    assert set(sent[0].content) == {"arrays", "config"} and dict(sent[0].content["config"]) == {"server-round": 1}
