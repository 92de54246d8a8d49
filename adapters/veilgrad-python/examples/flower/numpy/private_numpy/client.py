"""A client: it trains the model that it is sent on its own data, and replies with the result.

It needs to know nothing about privacy. The server clips what it gets, whatever it is.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from private_numpy.model import points, train

app = ClientApp()


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """Answers an invitation."""
    inputs, labels = points(seed=100 + int(context.node_config.get("user", 0)), count=200)
    model = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    train(model, inputs, labels)
    arrays = ArrayRecord({name: Array(values) for name, values in model.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(inputs)})}), reply_to=message)
