"""A client: it trains the network that it is sent on its own data, and replies with the result.

It needs to know nothing about privacy. The server clips what it gets, whatever it is.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from private_torch.model import network, points

app = ClientApp()


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """Answers an invitation."""
    inputs, labels = points(seed=100 + int(context.node_config.get("user", 0)), count=200)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        for rows in torch.arange(len(inputs)).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(inputs)})}
    )
    return Message(content, reply_to=message)
