"""The Python package beside Opacus and dp_accounting, in one run: python benches/python.py [--quick] [SECTION...]

Sections: accounting, calibration, training, accuracy; all but accuracy by default. CPU times: the least of several turns,
peers in turn. Needs veilgrad, opacus and dp-accounting in the environment; `.ci/torch-cpu` installs torch without CUDA.
"""

import gzip
import pathlib
import statistics
import sys
import time
import warnings

warnings.filterwarnings("ignore")
DATA = pathlib.Path(__file__).parent.parent / "data" / "mnist"
QUICK = "--quick" in sys.argv
#: rate, noise multiplier, steps, delta: MNIST of the tutorial, little noise, many small steps.
ROWS = [(0.0043, 1.1, 14040, 1e-5), (0.01, 0.5, 10_000, 1e-6), (1e-4, 0.6, 1_000_000, 1e-8)]


def cpu(work, turns):
    """The least CPU time of some turns, in ms, and the last result."""
    times = []
    for _ in range(turns):
        start = time.process_time()
        result = work()
        times.append(1e3 * (time.process_time() - start))
    return min(times), result


def accounting():
    import dp_accounting
    from opacus.accountants import PRVAccountant

    import veilgrad

    def pld(rate, noise, steps, delta):
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.pld.PLDAccountant().compose(event, steps).get_epsilon(delta)

    def prv(rate, noise, steps, delta):
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        return accountant.get_epsilon(delta)

    def ours(rate, noise, steps, delta):
        return veilgrad.epsilon(veilgrad.Round.poisson(rate, noise, steps), delta).epsilon

    print("epsilon and CPU ms             ours        dp_accounting PLD           Opacus PRV      ratios")
    for row in ROWS[:1] if QUICK else ROWS:
        ours(*row)
        (our_time, our), (pld_time, theirs), (prv_time, prv_found) = cpu(lambda: ours(*row), 5), cpu(lambda: pld(*row), 2), cpu(lambda: prv(*row), 1)
        print(f"{row!s:34} {our:.5f} {our_time:7.2f} {theirs:.5f} {pld_time:9.1f} {prv_found:.5f} {prv_time:9.1f}"
              f"  {pld_time / our_time:.0f}x {prv_time / our_time:.0f}x")


def calibration():
    from opacus.accountants.utils import get_noise_multiplier

    import veilgrad
    import veilgrad.opacus

    veilgrad.opacus.register()

    def search(accountant):
        return get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.0043, steps=14040, accountant=accountant)

    search("veilgrad")
    print("calibration to epsilon 3, CPU ms, noise multiplier")
    for name, work, turns in [("veilgrad.calibrate", lambda: veilgrad.calibrate(3.0, 1e-5, rate=0.0043, rounds=14040).noise_multiplier, 5),
                              ("Opacus's search, veilgrad", lambda: search("veilgrad"), 5), ("Opacus's search, prv", lambda: search("prv"), 1)]:
        if not (QUICK and "prv" in name):
            spent, found = cpu(work, turns)
            print(f"  {name:28} {spent:10.1f} {found:.5f}")


def mnist(part):
    import numpy
    import torch

    def read(name, skip):
        return numpy.frombuffer(gzip.open(DATA / name).read(), dtype=numpy.uint8)[skip:]

    images = torch.from_numpy(read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).astype(numpy.float32) / 255)
    return images, torch.from_numpy(read(f"{part}-labels-idx1-ubyte.gz", 8).astype(numpy.int64))


def model(name):
    from torch import nn

    if name == "A":
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


BATCH, NOISE = 256, 1.1


def trainer(name, kind, data, steps, rate, chunk=64):
    """A function that makes one step, and the module. Both begin with the same weights."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader

    import veilgrad.opacus

    module = model(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    criterion = torch.nn.CrossEntropyLoss()
    if kind == "opacus":
        engine = PrivacyEngine(accountant="rdp")
        loader = DataLoader(data, batch_size=BATCH)
        module, optimizer, loader = engine.make_private(
            module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=NOISE, max_grad_norm=1.0)
    else:
        module, optimizer, loader, _ = veilgrad.opacus.make_private(
            module=module, optimizer=optimizer, dataset=data, rate=BATCH / len(data), steps=steps, noise_multiplier=NOISE, clip=1.0,
            denominator=BATCH, chunk=chunk, probe=lambda module, batch: criterion(module(batch[0]), batch[1]))
        print(f"  {name}: chunks of {chunk}, numerics {optimizer.numerics}")

    def batches():
        while True:
            yield from loader

    source = batches()

    def step():
        released = getattr(optimizer, "releases", None)
        while True:
            inputs, targets = next(source)
            optimizer.zero_grad()
            criterion(module(inputs), targets).backward()
            optimizer.step()
            if released is None or optimizer.releases > released:
                return

    return step, module


def training():
    import torch
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    data = TensorDataset(*mnist("train"))
    turns, per_turn = (2, 2) if QUICK else (9, 10)
    print(f"CPU ms per step, batch {BATCH}, one torch thread: median and least of {turns} turns of {per_turn} steps")
    for name in "AB":
        count = per_turn if name == "A" else max(2, per_turn // 3)
        kinds = {"Opacus": trainer(name, "opacus", data, 0, 0.15)[0]}
        for chunk in (32, 64):
            kinds[f"exact, chunks of {chunk}"] = trainer(name, "exact", data, 10_000, 0.15, chunk)[0]
        times = {kind: [] for kind in kinds}
        for step in kinds.values():
            step()
        for _ in range(turns):
            for kind, step in kinds.items():
                times[kind].append(cpu(lambda: [step() for _ in range(count)], 1)[0] / count)
        base = statistics.median(times["Opacus"])
        for kind, found in times.items():
            print(f"  {name} {kind:22} {statistics.median(found):8.2f} {min(found):8.2f}   {statistics.median(found) / base:.2f}x")


def accuracy():
    import torch
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    data, (images, labels) = TensorDataset(*mnist("train")), mnist("t10k")
    epochs = 1 if QUICK else 3
    steps = epochs * round(len(data) / BATCH)
    print(f"MNIST, model A, {epochs} epochs, noise multiplier {NOISE}: test accuracy in %")
    means = {}
    for kind in ("opacus", "exact"):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            step, module = trainer("A", kind, data, steps, 0.5)
            for _ in range(steps):
                step()
            module.eval()
            with torch.no_grad():
                found.append(100 * float((module(images).argmax(1) == labels).float().mean()))
        means[kind] = statistics.mean(found)
        print(f"  {kind:8} {' '.join(f'{one:.2f}' for one in found)}   mean {means[kind]:.2f}")
    print(f"  difference {means['exact'] - means['opacus']:+.2f}")


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
    for section in chosen or ["accounting", "calibration", "training"]:
        globals()[section]()
