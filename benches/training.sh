#!/usr/bin/env bash
# Private training beside PyTorch + Opacus, alternating in one run: benches/training.sh [--quick] [--burn]
# --burn: the adapter for Burn instead of the native engine, on one thread.
# Prints examples per second, the best of the turns, and the ratios.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${VEILGRAD_BENCH_PYTHON:-target/bench-torch}
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -c 'import opacus' 2>/dev/null || "$environment/bin/python" -m pip install --quiet torch opacus
package=(-p veilgrad-benches)
case " $* " in *" --burn "*) package=(--manifest-path adapters/veilgrad-burn/Cargo.toml) ;; esac
ours=$(cargo bench --quiet "${package[@]}" --bench training --no-run --message-format=json |
    "$environment/bin/python" -c 'import json, sys
for line in sys.stdin:
    entry = json.loads(line)
    if entry.get("executable") and entry["target"]["name"] == "training":
        print(entry["executable"])')
"$environment/bin/python" benches/training_compare.py "$ours" "$PWD/data/mnist" "$@"
