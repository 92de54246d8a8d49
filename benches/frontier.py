"""Truncated samples, random allocation, groups and tuning: epsilon and CPU seconds beside public packages, in one run.

    benches/frontier.sh [--quick]

Every row asks both programs the same question. Times are CPU seconds. Ours is the command, so its time includes the start of a
process; those of the packages do not, and imports and first calls are over before the clock starts. `lower` is our certified
lower bound. After every row of random allocation comes one of Poisson samples with as many rounds: what they would cost.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time

import dp_accounting
from dp_accounting import dp_event, pld, rdp

try:
    import PLD_accounting
except ImportError:
    PLD_accounting = None

COMMAND = os.environ["VEILGRAD_COMMAND"]
ZERO = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def ours(arguments):
    answer = subprocess.run([COMMAND, "plan", "--json", "-q", *arguments.split()], check=True, capture_output=True)
    found = json.loads(answer.stdout)
    return found["epsilon"], found["epsilon_lower"]


def clock(question):
    """The answer, and the CPU seconds of this process and its children."""
    def spent():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    start = spent()
    return question(), spent() - start


def peer(accountant, event, count, delta):
    return accountant.compose(event, count).get_epsilon(delta)


def allocation(steps, epochs, noise, delta):
    ask = PLD_accounting.gaussian_allocation_epsilon_range
    upper, lower = ask(delta=delta, sigma=noise, num_steps=steps, num_epochs=epochs)
    return lower, upper


def poisson(rate, noise, rounds):
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), rounds)


def truncated_rows():
    q = 256 / 60000
    base = "--records 60000 --batch 256 --steps 14040 --delta 1e-5 --noise-multiplier 1.1"
    for most in (319, 335, 351):
        event = dp_event.TruncatedSubsampledGaussianDpEvent(60000, q, most, 1.1)
        yield (
            f"truncated at {most}, 14040 rounds",
            f"{base} --sampling truncated --max-batch {most} --adjacency zero-out",
            "dp_accounting PLD",
            lambda event=event: peer(pld.PLDAccountant(ZERO), event, 14040, 1e-5),
        )
    yield (
        "not truncated (Poisson), 14040 rounds",
        f"{base} --adjacency zero-out",
        "dp_accounting PLD",
        lambda: peer(pld.PLDAccountant(ZERO), poisson(q, 1.1, 14040), 1, 1e-5),
    )


def allocation_rows(quick):
    cases = [(100, 1, 1.0, 1e-5), (1000, 1, 1.0, 1e-6)]
    if not quick:
        cases += [(1000, 5, 0.7, 1e-6), (14, 10, 1.441, 1e-5), (58, 5, 0.823, 1e-5), (14, 40, 2.459, 1e-5)]
    for t, epochs, noise, delta in cases:
        base = f"--records {100 * t} --batch 100 --epochs {epochs} --delta {delta} --noise-multiplier {noise}"
        if PLD_accounting:
            yield (
                f"allocation, {epochs} x {t} rounds, z {noise}",
                f"{base} --sampling allocation",
                "PLD_accounting",
                lambda t=t, epochs=epochs, noise=noise, delta=delta: allocation(t, epochs, noise, delta),
            )
        yield (
            f"Poisson, {epochs * t} rounds, z {noise}",
            base,
            "dp_accounting PLD",
            lambda t=t, epochs=epochs, noise=noise, delta=delta: peer(
                pld.PLDAccountant(), poisson(1 / t, noise, t * epochs), 1, delta
            ),
        )
    yield (
        "allocation, 1 x 1 rounds, z 1.0",
        "--sampling allocation --records 100 --batch 100 --epochs 1 --delta 1e-5 --noise-multiplier 1",
        "dp_accounting PLD",
        lambda: peer(pld.PLDAccountant(), dp_event.GaussianDpEvent(1.0), 1, 1e-5),
    )


def tuning_rows(quick):
    base = poisson(256 / 60000, 1.1, 14040)
    for eta in (0,) if quick else (0, -0.5, 1):
        for mean in (3, 10) if quick else (3, 10, 30):
            yield (
                f"best of {mean} runs on average, eta {eta}",
                "--records 60000 --batch 256 --steps 14040 --delta 1e-5 --noise-multiplier 1.1 "
                f"--tuning-mean-runs {mean} --tuning-distribution {eta}",
                "dp_accounting RDP",
                lambda mean=mean, eta=eta: peer(
                    rdp.RdpAccountant(), dp_event.RepeatAndSelectDpEvent(base, mean, eta), 1, 1e-5
                ),
            )


def group_rows():
    q = 256 / 60000
    for records in (2, 3):
        weights = [math.comb(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)]
        yield (
            f"a person with {records} records",
            f"--records 60000 --batch 256 --steps 14040 --delta 1e-5 --noise-multiplier 1.1 --group {records}",
            "dp_accounting PLD",
            lambda weights=weights, records=records: peer(
                pld.PLDAccountant(),
                dp_event.MixtureOfGaussiansDpEvent(1.1, [float(j) for j in range(records + 1)], weights),
                14040,
                1e-5,
            ),
        )


def rows(quick):
    yield from truncated_rows()
    yield from allocation_rows(quick)
    yield from tuning_rows(quick)
    yield from group_rows()


def shown(value):
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(f"{float(end):.5f}" for end in value) + "]"
    return f"{float(value):.5f}"


def main():
    quick = "--quick" in sys.argv[1:]
    # Whatever is compiled or loaded at first use.
    peer(pld.PLDAccountant(), dp_event.GaussianDpEvent(1.0), 2, 1e-5)
    if PLD_accounting:
        allocation(10, 1, 1.0, 1e-5)
    print(f"{'question':<38} {'epsilon':>9} {'lower':>9} {'s':>6}   {'package':<18} {'epsilon':>20} {'s':>7}")
    for question, arguments, name, ask in rows(quick):
        (epsilon, lower), seconds = clock(lambda arguments=arguments: ours(arguments))
        try:
            value, theirs = clock(ask)
            beside = f"{shown(value):>20} {theirs:>7.2f}"
        except Exception as error:  # noqa: BLE001: what a package refuses is part of the answer
            beside = f"{type(error).__name__}: {error}"[:60]
        certified = f"{lower:.5f}" if lower is not None else "none"
        print(f"{question:<38} {epsilon:>9.5f} {certified:>9} {seconds:>6.2f}   {name:<18} {beside}", flush=True)


main()
