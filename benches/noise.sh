#!/usr/bin/env bash
# Exact noise beside rand_distr and numpy, in one run: benches/noise.sh [--quick] [--plain]
# --plain: once more without the switch for the cipher's AVX-512 kernel, as a program that depends on these crates has it.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=target/bench-python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/python" -m pip install --quiet numpy
export VEILGRAD_PYTHON="$PWD/$environment/bin/python"
plain=false arguments=()
for argument in "$@"; do
    if [ "$argument" = --plain ]; then plain=true; else arguments+=("$argument"); fi
done
cargo bench --quiet -p veilgrad-benches --bench noise -- "${arguments[@]}"
if $plain; then
    # Flags of the environment replace those of .cargo/config.toml.
    RUSTFLAGS="" cargo bench --quiet --target-dir target/plain -p veilgrad-benches --bench noise -- "${arguments[@]}"
fi
