"""One case of PyTorch + Opacus: training.py MODEL MODE THREADS BATCH ROUNDS DATA; prints one JSON line."""

import gzip
import json
import sys
import time
import warnings

model_name, mode, threads, batch, rounds, data = sys.argv[1:]
threads, batch, rounds = int(threads), int(batch), int(rounds)
warnings.filterwarnings("ignore")

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(threads)
torch.manual_seed(1)


def read(name, skip):
    with gzip.open(f"{data}/{name}") as file:
        return numpy.frombuffer(file.read(), dtype=numpy.uint8)[skip:]


RECORDS, FEATURES, DISTINCT = 60_000, 10_287, 4_000


class Features(Dataset):
    """The made-up records of model D, as in training.rs."""

    def __init__(self):
        values = numpy.arange(DISTINCT * FEATURES, dtype=numpy.int64) * 7919 % 1009
        self.x = torch.from_numpy((values * (2 / 1009) - 1).astype(numpy.float32)).view(DISTINCT, FEATURES)
        self.y = torch.arange(RECORDS) % 10

    def __len__(self):
        return RECORDS

    def __getitem__(self, record):
        return self.x[record % DISTINCT], self.y[record]


LENGTH, WORDS, WIDTH, HEADS, CLASSES = 64, 10_000, 64, 4, 4


def texts():
    """The made-up records of model C, as in adapters/veilgrad-burn/benches/training.rs."""
    mixed = numpy.arange(RECORDS * LENGTH, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    chance = (mixed ^ (mixed >> numpy.uint64(32))) * numpy.uint64(0xD6E8FEB86659FD93) >> numpy.uint64(48)
    # Small numbers are frequent, as in texts whose words are numbered by frequency.
    words = (chance**3 * numpy.uint64(WORDS)) >> numpy.uint64(48)
    labels = torch.arange(RECORDS) % CLASSES
    return TensorDataset(torch.from_numpy(words.astype(numpy.int64)).view(RECORDS, LENGTH), labels)


class Block(nn.Module):
    """torch.nn.TransformerEncoderLayer with its default order and activation, without dropout."""

    def __init__(self):
        super().__init__()
        # Opacus has no per-record gradients for torch's own attention.
        from opacus.layers import DPMultiheadAttention

        self.attention = DPMultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.norm_1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm_2(x + self.narrow(nn.functional.relu(self.wide(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        places = torch.arange(LENGTH).repeat(x.shape[0], 1)
        return self.last(self.blocks(self.words(x) + self.places(places)).mean(1))


if model_name in ["A", "B"]:
    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(numpy.float32) / 255
    labels = torch.from_numpy(read("train-labels-idx1-ubyte.gz", 8).astype(numpy.int64))

if model_name == "A":
    dataset = TensorDataset(torch.from_numpy(images).view(-1, 1, 28, 28), labels)
    model = nn.Sequential(
        nn.ZeroPad2d((3, 3, 3, 3)),
        nn.Conv2d(1, 16, 8, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
elif model_name == "B":
    dataset = TensorDataset(torch.from_numpy(images), labels)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )
elif model_name == "C":
    dataset, model = texts(), Transformer()
else:
    dataset, model = Features(), nn.Sequential(nn.Linear(FEATURES, 10))

# As in training.rs: the peak is to be that of training, not of reading the data.
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")

optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(dataset, batch_size=batch, shuffle=True)
if mode != "public":
    from opacus import PrivacyEngine

    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        criterion=criterion,
    )
    if mode == "ghost":
        model, optimizer, criterion, loader = made
    else:
        model, optimizer, loader = made


def peak_mb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM:"))


def data_mb():
    tensors = dataset.tensors if isinstance(dataset, TensorDataset) else [dataset.x, dataset.y]
    return sum(tensor.nbytes for tensor in tensors) / 2**20


def batches():
    while True:
        yield from loader


def step(inputs, targets):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()


source = batches()
for _ in range(3):
    step(*next(source))
start, cpu = time.perf_counter(), time.process_time()
for _ in range(rounds):
    step(*next(source))
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(
    json.dumps(
        {
            "model": model_name,
            "mode": mode,
            "threads": threads,
            "batch": batch,
            "per_second": round(batch * rounds / seconds),
            "per_cpu_second": round(batch * rounds / cpu),
            "peak_mb": peak_mb(),
            "data_mb": data_mb(),
        }
    )
)
