#!/usr/bin/env bash
# Our accountants beside dp_accounting's, in one run: benches/accounting.sh [--quick] [--all]
# --all also runs dp_accounting's PLD on 1000 distinct rounds, which takes about 5 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=target/bench-python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet numpy dp-accounting==0.6.0
VEILGRAD_PYTHON="$PWD/$environment/bin/python" cargo bench --quiet -p veilgrad-benches --bench accounting -- "$@"
