#!/usr/bin/env bash
# Truncated samples, random allocation, groups and tuning beside dp_accounting and PLD_accounting (the package of the authors of
# the analysis of random allocation), in one run: benches/frontier.sh [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."
environment=target/bench-python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet numpy dp-accounting==0.6.0 PLD-accounting
cargo build --quiet --release -p veilgrad-cli
VEILGRAD_COMMAND="$PWD/target/release/veilgrad" "$environment/bin/python" benches/frontier.py "$@"
