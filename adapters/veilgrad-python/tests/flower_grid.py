"""A federation in memory: nodes are functions from an invitation to its replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Node = Callable[[Message], "list[Message]"]


class FakeGrid(Grid):
    """Delivers every message at once. `invited` has the nodes of each round."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.invited: list[list[int]] = []
        self._waiting: dict[str, list[Message]] = {}
        self._numbers = count()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.invited.append([message.metadata.dst_node_id for message in messages])
        sent = []
        for message in messages:
            identity = f"message {next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identity
            self._waiting[identity] = self.nodes[message.metadata.dst_node_id](message)
            sent.append(identity)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for identity in list(message_ids) for reply in self._waiting.pop(identity, [])]


def trained(message: Message) -> dict[str, np.ndarray]:
    """The arrays of an invitation."""
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def answer(message: Message, arrays: Mapping[str, np.ndarray], **metrics: Any) -> Message:
    """A reply with these arrays."""
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1, **metrics})}), reply_to=message)


def adds(update: Mapping[str, Any], **metrics: Any) -> Node:
    """A node whose update of the model is always this one."""

    def train(message: Message) -> list[Message]:
        arrays = trained(message)
        return [answer(message, {name: arrays[name] + np.asarray(update[name], np.float32) for name in arrays}, **metrics)]

    return train
