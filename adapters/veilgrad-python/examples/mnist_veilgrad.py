"""MNIST with Opacus and Veilgrad: mnist_veilgrad.py [RECORDS [EPOCHS]]"""

import gzip
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from veilgrad.opacus import make_private

DATA = pathlib.Path(__file__).parents[3] / "data" / "mnist"
RECORDS, EPOCHS = (int(word) for word in [*sys.argv[1:], "60000", "3"][:2])
BATCH, DELTA = 256, 1e-5


def read(part):
    images = np.frombuffer(gzip.open(DATA / f"{part}-images-idx3-ubyte.gz").read()[16:], np.uint8)
    labels = np.frombuffer(gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz").read()[8:], np.uint8)
    images = torch.from_numpy(images.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    return images, torch.from_numpy(labels.astype(np.int64))


images, labels = read("train")
train = TensorDataset(images[:RECORDS], labels[:RECORDS])
model = nn.Sequential(
    nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
    nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
    nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()

rate = BATCH / RECORDS  # a declared number: how many records there are is private
model, optimizer, loader, run = make_private(
    module=model,
    optimizer=optimizer,
    dataset=train,
    rate=rate,
    steps=EPOCHS * round(1 / rate),
    denominator=BATCH,
    noise_multiplier=1.1,
    clip=1.0,
    probe=lambda model, batch: criterion(model(batch[0]), batch[1]),
)

for epoch in range(EPOCHS):
    for features, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(features), targets)
        loss.backward()
        optimizer.step()

epsilon = run.claim(DELTA).epsilon
model.eval()
images, labels = read("t10k")
with torch.no_grad():
    accuracy = (model(images).argmax(1) == labels).float().mean()
print(f"accuracy {100 * accuracy:.2f} %, epsilon {epsilon:.3f} at delta {DELTA}")
