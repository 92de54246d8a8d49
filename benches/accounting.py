"""dp_accounting's side of benches/accounting.rs: a job per line in, seconds and a value per line out.

Imports and interpreter start-up are over before the first answer, which says "ready".
"""

import json
import sys
import time

import dp_accounting

ACCOUNTANTS = {
    "pld": dp_accounting.pld.PLDAccountant,
    "rdp": dp_accounting.rdp.RdpAccountant,
}


def rounds(rate, noise, count):
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(sampled, count)


def epsilon(job):
    accountant = ACCOUNTANTS[job["accountant"]]()
    for step in job["steps"]:
        accountant.compose(rounds(*step))
    return accountant.get_epsilon(job["delta"])


def noise(job):
    return dp_accounting.calibrate_dp_mechanism(
        ACCOUNTANTS[job["accountant"]],
        lambda noise: rounds(job["rate"], noise, job["rounds"]),
        job["epsilon"],
        job["delta"],
        tol=1e-6,
    )


def run(job):
    ask = epsilon if "steps" in job else noise
    start = time.perf_counter()
    value = ask(job)
    return {"seconds": time.perf_counter() - start, "value": float(value)}


# What is loaded or planned at first use is not counted either.
for name in ACCOUNTANTS:
    run({"accountant": name, "steps": [[0.01, 1.0, 10]], "delta": 1e-5})
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
