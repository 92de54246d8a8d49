#!/usr/bin/env bash
# Trains the six recipes on MNIST and Fashion-MNIST, or those named, and prints a table: certified epsilon and test
# accuracy of each run, the mean, and the longest time of a run. usage: examples/accuracy.sh [RUNS [RECIPE...]]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --release -p veilgrad-cli
program=${CARGO_TARGET_DIR:-target}/release/veilgrad
place=$(mktemp -d)
TIMEFORMAT='%R %U %S'
trap 'rm -rf "$place"' EXIT
number() { grep -o "\"$2\":[0-9.e-]*" "$1" | head -n 1 | cut -d: -f2; }

recipes=("${@:2}")
if [ "${#recipes[@]}" = 0 ]; then
    recipes=(mnist-eps1 mnist-eps3 mnist-eps8 fashion-mnist-eps1 fashion-mnist-eps3 fashion-mnist-eps8)
fi
printf '%-20s %-8s %-6s %-8s %-8s %s\n' recipe epsilon mean "wall s" "CPU s" "test accuracy of each run, %"
for recipe in "${recipes[@]}"; do
    found=""
    : >"$place/times"
    for run in $(seq "${1:-3}"); do
        { time "$program" train "examples/$recipe.toml" --out "$place/$recipe-$run" --ledger "$place/$recipe-$run.db" -q --json \
            >"$place/report.json" 2>&3; } 3>&2 2>>"$place/times"
        found="$found $(number "$place/report.json" test_accuracy)"
        epsilon=$(number "$place/report.json" epsilon)
        rm -rf "$place/$recipe-$run"
    done
    longest=$(awk '{ if ($1 > wall) wall = $1; if ($2 + $3 > cpu) cpu = $2 + $3 } END { printf "%-8.0f %-8.0f", wall, cpu }' "$place/times")
    echo "$found" | awk -v recipe="$recipe" -v epsilon="$epsilon" -v longest="$longest" '{
        for (i = 1; i <= NF; i++) { sum += $i; each = each sprintf(" %.2f", 100 * $i) }
        printf "%-20s %-8.5f %-6.2f %s%s\n", recipe, epsilon, 100 * sum / NF, longest, each
    }'
done
