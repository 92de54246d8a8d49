#!/usr/bin/env bash
# Trains examples/federated.toml, and the same federation without protection: a noise multiplier of 1e-5, and no update
# clipped. Prints epsilon and test accuracy of both. usage: examples/federated.sh [RUNS]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p veilgrad-cli
program=${CARGO_TARGET_DIR:-target}/release/veilgrad
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
number() { grep -o "\"$2\":[0-9.e-]*" "$1" | head -n 1 | cut -d: -f2; }

sed "s|\"\.\./data|\"$PWD/data|" examples/federated.toml >"$place/private.toml"
# Noise is in proportion to the clip norm: 1e-5 of a clip norm that no update reaches.
sed -e 's/^epsilon = .*/noise_multiplier = 1e-5/' -e 's/^clip = .*/clip = 100.0/' "$place/private.toml" >"$place/plain.toml"
printf '%-10s %-14s %s\n' training epsilon "test accuracy"
for kind in private plain; do
    for run in $(seq "${1:-1}"); do
        "$program" train "$place/$kind.toml" --out "$place/$kind-$run" --ledger "$place/$kind-$run.db" -q --json >"$place/report.json"
        printf '%-10s %-14s %s\n' "$kind" "$(number "$place/report.json" epsilon)" "$(number "$place/report.json" test_accuracy)"
    done
done
