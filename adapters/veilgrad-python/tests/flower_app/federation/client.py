"""A client that is honest or hostile, as its node is configured and in which round it is."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

#: What each node does in rounds 1, 2 and 3.
BEHAVIOUR = {
    0: ("honest", "honest", "honest"),
    1: ("NaN", "1e30", "honest"),
    2: ("zero", "crash", "garbage"),
    3: ("missing array", "wrong shape", "1e30"),
}


class Garbage(MetricRecord):
    """A record whose last byte promises more bytes, so that it cannot be decoded."""

    def deflate(self) -> bytes:
        return MetricRecord({"num-examples": 5}).deflate()[:-1] + b"\xff"


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answers an invitation."""
    number = int(message.content["config"]["server-round"])
    kind = BEHAVIOUR[int(context.node_config["user"])][number - 1]
    arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    if kind == "crash":
        raise RuntimeError("a message about private data")
    if kind == "honest":
        arrays = {name: values + np.float32(0.01) for name, values in arrays.items()}
    if kind == "NaN":
        arrays["w"][0, 0] = math.nan
    if kind == "1e30":
        arrays["w"][:] = 1e30
    if kind == "wrong shape":
        arrays["w"] = arrays["w"].T.copy()
    if kind == "missing array":
        del arrays["b"]
    record = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    metrics = Garbage({}) if kind == "garbage" else MetricRecord({"num-examples": 5})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
