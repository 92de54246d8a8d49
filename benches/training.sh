#!/usr/bin/env bash
# Private training beside PyTorch + Opacus, alternating in one run: benches/training.sh [--quick] [--burn]
# Models A, B and D with the native engine, model C (a transformer) with the adapter for Burn, on one thread.
# --burn: models A, B and C with the adapter for Burn.
# Prints examples per second, the best of the turns, and the ratios.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${VEILGRAD_BENCH_PYTHON:-target/bench-torch}
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -c 'import opacus' 2>/dev/null || "$environment/bin/python" -m pip install --quiet torch opacus
built() {
    cargo bench --quiet "$@" --bench training --no-run --message-format=json | "$environment/bin/python" -c 'import json, sys
for line in sys.stdin:
    entry = json.loads(line)
    if entry.get("executable") and entry["target"]["name"] == "training":
        print(entry["executable"])'
}
burn=$(built --manifest-path adapters/veilgrad-burn/Cargo.toml)
case " $* " in
*" --burn "*) native=$burn ;;
*) native=$(built -p veilgrad-benches) ;;
esac
"$environment/bin/python" benches/training_compare.py "$native" "$burn" "$PWD/data/mnist" "$@"
