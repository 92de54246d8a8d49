"""Lets the two take turns and prints ratios: training_compare.py NATIVE BURN DATA [--quick] [--burn]"""

import json
import os
import subprocess
import sys

native, adapter, data, *options = sys.argv[1:]
quick = "--quick" in options
burn = "--burn" in options
turns = 1 if quick else 3
here = os.path.dirname(os.path.abspath(__file__))
modes = ["hooks", "ew", "ghost"] if quick else ["hooks", "ew", "ghost", "functorch"]


def run(theirs, model, mode, threads, batch, rounds):
    """The result of a case; for a mode that Opacus does not support, the reason."""
    case = [model, mode, str(threads), str(batch), str(rounds)]
    ours = adapter if model == "C" else native
    command = [sys.executable, f"{here}/training.py", *case, data] if theirs else [ours, *case]
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        if theirs and mode != "public":
            return done.stderr.strip().splitlines()[-1]
        print(done.stderr, file=sys.stderr)
        sys.exit(f"failed: {command}")
    return json.loads(done.stdout.splitlines()[-1])


def best(results, key):
    return max(result[key] for result in results)


def peak(results, without=None):
    """The peak memory in MB, without what `without` names."""
    return max(result["peak_mb"] - (result[without] if without else 0) for result in results)


def ratio(found, case, others, key):
    """Our case over the best of the others, and which that is."""
    rivals = {other: best(found[other], key) for other in others}
    rival = max(rivals, key=rivals.get)
    return f"{best(found[case], key) / rivals[rival]:.2f} ({rival[1]})"


models = ["A", "B", "C"] if burn else ["A", "B", "D", "C"]
batches = {"D": 4096}
# On a busy machine time on the wall says little; time of the processor says more, except about
# threads that wait by spinning.
keys = {"per CPU second": "per_cpu_second", "per second": "per_second"}
for threads in [1] if burn else [1, 2]:
    for model in models:
        if model == "C" and threads > 1:
            continue  # the adapter runs on one thread
        found, batch = {}, batches.get(model, 256)
        for _ in range(turns):
            for theirs, mode in [
                (False, "private"),
                *((True, mode) for mode in modes),
                (False, "public"),
                (True, "public"),
            ]:
                rounds = (20 if quick else 100) if not theirs else (6 if quick else 20)
                if model == "D":
                    rounds = 4 if quick else 12
                if model == "C":
                    rounds = (5 if quick else 20) if not theirs else (2 if quick else 6)
                if theirs and model == "B" and mode in ["hooks", "ew", "functorch"]:
                    rounds = 3  # a few hundred examples per second
                found.setdefault((theirs, mode), []).append(
                    run(theirs, model, mode, threads, batch, rounds)
                )
        print(f"model {model}, {threads} thread(s), batch {batch}: examples {' and '.join(keys)}, peak MB")
        for (theirs, mode), results in list(found.items()):
            name = ("opacus " if mode != "public" else "torch ") + mode if theirs else f"ours {mode}"
            if isinstance(results[0], str):
                print(f"  {name:<18}not supported: {results[0]}")
                del found[theirs, mode]
                continue
            numbers = "".join(f"{best(results, key):>10.0f}" for key in keys.values())
            print(f"  {name:<18}{numbers}{max(result['peak_mb'] for result in results):>8.0f}")
        ours_private, peers = (False, "private"), [(True, mode) for mode in modes if (True, mode) in found]
        for name, key in keys.items():
            beside = ratio(found, ours_private, peers, key)
            public = ratio(found, ours_private, [(False, "public")], key)
            print(f"  {name}: private training beside Opacus's best {beside}, beside our own {public}")
        leanest = min(peers, key=lambda peer: peak(found[peer]))
        with_data = peak(found[ours_private]) / peak(found[leanest])
        without = peak(found[ours_private], "data_mb") / peak(found[leanest], "data_mb")
        print(
            f"  peak memory beside Opacus's leanest mode ({leanest[1]}): {with_data:.3f}, of both without the training "
            f"data that they hold: {without:.3f}",
            flush=True,
        )
for model in ["A", "B"]:
    threads = 1 if burn else 2
    small = run(False, model, "private", threads, 256, 10)["peak_mb"]
    large = run(False, model, "private", threads, 4096, 10)["peak_mb"]
    print(f"model {model}, memory of batch 4096 beside batch 256, ours: {large / small:.2f}")
