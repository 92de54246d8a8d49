"""Lets the two take turns and prints ratios: training_compare.py OURS DATA [--quick]"""

import json
import os
import subprocess
import sys

ours, data, *options = sys.argv[1:]
quick = "--quick" in options
turns = 1 if quick else 5
here = os.path.dirname(os.path.abspath(__file__))
modes = ["hooks", "ew", "ghost"] if quick else ["hooks", "ew", "ghost", "functorch"]


def run(theirs, model, mode, threads, batch, rounds):
    case = [model, mode, str(threads), str(batch), str(rounds)]
    command = [sys.executable, f"{here}/training.py", *case, data] if theirs else [ours, *case]
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        sys.exit(f"failed: {command}")
    return json.loads(done.stdout.splitlines()[-1])


def best(results, key):
    return max(result[key] for result in results)


# On a busy machine, time on the wall says little about one thread; time of the processor does.
key = "per_cpu_second"
for threads in [1, 2]:
    for model in ["A", "B"]:
        found = {}
        for _ in range(turns):
            for theirs, mode in [
                (False, "private"),
                *((True, mode) for mode in modes),
                (False, "public"),
                (True, "public"),
            ]:
                rounds = (20 if quick else 100) if not theirs else (6 if quick else 20)
                found.setdefault((theirs, mode), []).append(
                    run(theirs, model, mode, threads, 256, rounds)
                )
        print(f"model {model}, {threads} thread(s), batch 256: examples per CPU second (per second), peak MB")
        for (theirs, mode), results in found.items():
            name = ("opacus " if mode != "public" else "torch ") + mode if theirs else f"ours {mode}"
            memory = max(result["peak_mb"] for result in results)
            print(f"  {name:<18}{best(results, key):>10.0f}{best(results, 'per_second'):>10.0f}{memory:>8.0f}")
        private = best(found[(False, "private")], key)
        peers = {mode: best(found[(True, mode)], key) for mode in modes}
        mode = max(peers, key=peers.get)
        print(f"  private training beside Opacus's best mode ({mode}): {private / peers[mode]:.2f}")
        print(f"  private beside non-private, ours: {private / best(found[(False, 'public')], key):.2f}")
        leanest = min(max(r["peak_mb"] for r in found[(True, mode)]) for mode in modes)
        memory = max(result["peak_mb"] for result in found[(False, "private")])
        print(f"  peak memory beside Opacus's leanest mode: {memory / leanest:.2f}", flush=True)
for model in ["A", "B"]:
    small = run(False, model, "private", 2, 256, 10)["peak_mb"]
    large = run(False, model, "private", 2, 4096, 10)["peak_mb"]
    print(f"model {model}, memory of batch 4096 beside batch 256, ours: {large / small:.2f}")
