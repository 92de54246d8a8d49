#!/usr/bin/env bash
# Trains the six recipes on MNIST and Fashion-MNIST, or those named, and prints a table: certified epsilon and test
# accuracy of each run, and the mean. usage: examples/accuracy.sh [RUNS [RECIPE...]]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p veilgrad-cli
program=${CARGO_TARGET_DIR:-target}/release/veilgrad
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
number() { grep -o "\"$2\":[0-9.e-]*" "$1" | head -n 1 | cut -d: -f2; }

recipes=("${@:2}")
if [ "${#recipes[@]}" = 0 ]; then
    recipes=(mnist-eps1 mnist-eps3 mnist-eps8 fashion-mnist-eps1 fashion-mnist-eps3 fashion-mnist-eps8)
fi
printf '%-20s %-8s %-6s %s\n' recipe epsilon mean "test accuracy of each run, %"
for recipe in "${recipes[@]}"; do
    found=""
    for run in $(seq "${1:-3}"); do
        "$program" train "examples/$recipe.toml" --out "$place/$recipe-$run" --ledger "$place/$recipe-$run.db" -q --json >"$place/report.json"
        found="$found $(number "$place/report.json" test_accuracy)"
        epsilon=$(number "$place/report.json" epsilon)
        rm -rf "$place/$recipe-$run"
    done
    echo "$found" | awk -v recipe="$recipe" -v epsilon="$epsilon" '{
        for (i = 1; i <= NF; i++) { sum += $i; each = each sprintf(" %.2f", 100 * $i) }
        printf "%-20s %-8.5f %-6.2f%s\n", recipe, epsilon, 100 * sum / NF, each
    }'
done
