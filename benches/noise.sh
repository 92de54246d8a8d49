#!/usr/bin/env bash
# Exact noise beside rand_distr and numpy, in one run: benches/noise.sh [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."
environment=target/bench-python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet numpy
VEILGRAD_PYTHON="$PWD/$environment/bin/python" cargo bench --quiet -p veilgrad-benches --bench noise -- "$@"
