#!/usr/bin/env bash
# Sets up a virtual environment under target/ and runs the tests of the Python package in it.
#   test.sh          with the development build, on one Python: tests, examples in docstrings, types
#   test.sh peers    the same with Opacus, dp_accounting and JAX Privacy, and torch without CUDA (1.4 GB on disk)
#   test.sh wheel    the wheel and the source distribution as users get them: size and tag, tests on every Python here
# PYTHON chooses the interpreter of the first; PYTHONS, a list, those of the second.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p target

environment() {
    local python=$1 place=$2
    [ -x "$place/bin/python" ] || "$python" -m venv "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check -r requirements-test.txt
}

development() {
    local place=$PWD/target/venv
    environment "${PYTHON:-python3}" "$place"
    VIRTUAL_ENV=$place "$place/bin/maturin" develop --quiet
    "$place/bin/python" -m mypy
    "$place/bin/python" -m pytest
}

peers() {
    local place=$PWD/target/venv-peers
    environment "${PYTHON:-python3}" "$place"
    "$place/bin/python" -c 'import torch' 2>/dev/null || ../../.ci/torch-cpu "$place"
    # Opacus would bring the CUDA libraries back.
    "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps opacus
    "$place/bin/pip" install --quiet --disable-pip-version-check scipy opt_einsum 'jax-privacy>=2.0'
    VIRTUAL_ENV=$place "$place/bin/maturin" develop --quiet
    "$place/bin/python" -m pytest tests/test_dp_accounting.py tests/test_factors.py tests/test_opacus.py \
        tests/test_peer_documentation.py python/veilgrad/{dp_accounting,jax_privacy,opacus}.py
    "$place/bin/python" ../../benches/python.py --quick
}

# Every Python from 3.10 on that is installed.
pythons() {
    if [ -n "${PYTHONS:-}" ]; then
        printf '%s\n' $PYTHONS
        return
    fi
    for version in 3.10 3.11 3.12 3.13 3.14; do
        for candidate in "$HOME"/.pyenv/versions/$version.*/bin/python "$(command -v python$version || true)"; do
            if [ -x "$candidate" ] && "$candidate" -c "import sys, venv; sys.exit('$version' != '%d.%d' % sys.version_info[:2])" 2>/dev/null; then
                printf '%s\n' "$candidate"
                break
            fi
        done
    done
}

wheel() {
    local place=$PWD/target/venv wheels=$PWD/target/wheels
    environment "${PYTHON:-python3}" "$place"
    rm -rf "$wheels"
    # The wheel is built from the source distribution, as for users who have nothing else.
    "$place/bin/maturin" sdist --out "$wheels"
    "$place/bin/pip" wheel --quiet --no-deps --wheel-dir "$wheels" "$wheels"/*.tar.gz
    local file size
    file=$(ls "$wheels"/*.whl) size=$(stat -c %s "$(ls "$wheels"/*.whl)")
    printf '%s: %s bytes\n' "$(basename "$file")" "$size"
    [ "$size" -le 4000000 ] || { echo "the wheel is larger than 4 MB"; exit 1; }
    case "$file" in *-cp310-abi3-*) ;; *) echo "the wheel is not for every Python from 3.10 on"; exit 1 ;; esac
    local count=0 python
    for python in $(pythons); do
        local here=$PWD/target/venv-wheel-$count
        rm -rf "$here"
        environment "$python" "$here"
        "$here/bin/pip" install --quiet --disable-pip-version-check --no-deps "$file"
        "$here/bin/python" --version
        # Beside the sources, Python would find those instead of the wheel.
        (cd "$here" && bin/python -m pytest -q -c /dev/null --rootdir "$here" --import-mode=importlib ../../tests)
        count=$((count + 1))
    done
    [ "$count" -ge 1 ] || { echo "no Python found"; exit 1; }
    echo "$count Pythons"
}

case "${1:-development}" in
    development | peers | wheel) "${1:-development}" ;;
    *) echo "usage: test.sh [development|peers|wheel]"; exit 2 ;;
esac
