#!/usr/bin/env bash
# Sets up virtual environments under target/ and runs the tests of the Python package in them.
#   test.sh                 with the development build, on one Python: tests, examples in docstrings, types
#   test.sh wheel           the wheel as users get it: size and tag, tests on every Python here, two at least
#   test.sh flower          with Flower: a federation in memory, servers that are killed, a real SuperLink with four SuperNodes,
#                           bugs that tests must notice, and what Flower's own differential privacy does
#   test.sh peers           with Opacus, dp_accounting and JAX Privacy, and torch without CUDA (1.4 GB on disk)
#   test.sh offline         builds and installs the package without a network
#   test.sh all [--quick]   everything that the package promises, with one wheel: size and tag, tests on every Python, tests
#                           with the peers, and the benchmark with accuracy; a table of limits and figures at the end.
#                           --quick: on two Pythons, and a benchmark so short that its limits do not count.
# PYTHON chooses the interpreter that builds and that the peers are for; PYTHONS, a list, those that the wheel is tested with.
# VEILGRAD_PEERS is the environment of the peers, if it is to outlive target/.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p target
peers_place=${VEILGRAD_PEERS:-$PWD/target/venv-peers}
figures=$(mktemp)
trap table EXIT

# A line of the table at the end: what is measured, its limit, what was found, and whether that is within the limit.
figure() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$figures"
}

install() {
    local place=$1
    shift
    # Not bin/pip: an environment that was copied would install into the one it was copied from.
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

environment() {
    local python=$1 place=$2
    [ -x "$place/bin/python" ] || "$python" -m venv "$place"
    install "$place" -r requirements-test.txt
}

peer_environment() {
    local place=$1
    environment "${PYTHON:-python3}" "$place"
    "$place/bin/python" -c 'import torch' 2>/dev/null || ../../.ci/torch-cpu "$place"
    # Opacus would bring the CUDA libraries back.
    install "$place" --no-deps opacus
    install "$place" scipy opt_einsum 'jax-privacy>=2.0'
}

# Runs pytest on the installed wheel, not on the sources beside the tests, and notes how many passed. With "no-skips", a
# test that is left out is a failure.
tests_of_wheel() {
    local place=$1 name=$2 skips=$3 tests=$PWD
    shift 3
    local log=$place/tests.log passed
    (cd "$place" && bin/python -m pytest -q -c /dev/null --rootdir "$place" --confcutdir "$tests" --import-mode=importlib -p no:cacheprovider "$@") | tee "$log"
    passed=$(grep -oE '[0-9]+ passed' "$log" | tail -1)
    if [ "$skips" = no-skips ] && grep -qE '[0-9]+ skipped' "$log"; then
        echo "tests were left out with $name"
        exit 1
    fi
    figure "tests, $name" "0 failed" "$passed" ok
}

development() {
    local place=$PWD/target/venv
    environment "${PYTHON:-python3}" "$place"
    VIRTUAL_ENV=$place "$place/bin/python" -m maturin develop --quiet
    "$place/bin/python" -m mypy
    # Each test file stays with one worker, because some train a model that all of their tests use.
    "$place/bin/python" -m pytest --numprocesses auto --dist loadfile
}

# Flower has many dependencies, and versions of its own for some of ours: an environment of its own.
flower() {
    local place=$PWD/target/venv-flower
    [ -x "$place/bin/python" ] || "${PYTHON:-python3}" -m venv "$place"
    # dp: what its accountant needs, which the benchmark executes.
    install "$place" maturin==1.16.0 'pytest>=8' numpy 'flwr[dp]>=1.41'
    VIRTUAL_ENV=$place "$place/bin/python" -m maturin develop --quiet
    "$place/bin/python" -m pytest --durations=5 tests/test_flower*.py python/veilgrad/flower
    "$place/bin/python" tests/flower_mutants.py
    # The limit of the aggregation is one of time, and does not count here.
    "$place/bin/python" ../../benches/flower.py --quick aggregation
    "$place/bin/python" ../../benches/flower.py clip defects
}

PEER_TESTS=(tests/test_{dp_accounting,factors,opacus,peer_documentation,tensors,exchange}.py)

peers() {
    local place=$peers_place
    peer_environment "$place"
    VIRTUAL_ENV=$place "$place/bin/python" -m maturin develop --quiet
    "$place/bin/python" -m pytest "${PEER_TESTS[@]}" python/veilgrad/{dp_accounting,jax_privacy,opacus}.py
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

# Builds the wheel from the source distribution, as for users who have nothing else. Sets file.
build_wheel() {
    local place=$PWD/target/venv wheels=$PWD/target/wheels size
    environment "${PYTHON:-python3}" "$place"
    rm -rf "$wheels"
    "$place/bin/python" -m maturin sdist --out "$wheels"
    # Where the last one was built: most crates are there.
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} "$place/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$wheels"/*.tar.gz
    file=$(ls "$wheels"/*.whl) size=$(stat -c %s "$(ls "$wheels"/*.whl)")
    printf '%s: %s bytes\n' "$(basename "$file")" "$size"
    [ "$size" -le 4000000 ] || { echo "the wheel is larger than 4 MB"; exit 1; }
    case "$file" in *-cp310-abi3-*) ;; *) echo "the wheel is not for every Python from 3.10 on"; exit 1 ;; esac
    figure "wheel, bytes" "<= 4000000" "$size" ok
    figure "wheel, tag" cp310-abi3 "$(basename "$file" | cut -d- -f3-4)" ok
}

# The tests with the wheel on some Pythons, at least two. An argument limits their number.
on_every_python() {
    local most=${1:-99} count=0 python here
    for python in $(pythons | head -n "$most"); do
        here=$PWD/target/venv-wheel-$count
        rm -rf "$here"
        environment "$python" "$here"
        install "$here" --no-deps "$file"
        tests_of_wheel "$here" "$("$here/bin/python" --version)" skips "$PWD/tests"
        count=$((count + 1))
    done
    [ "$count" -ge 2 ] || { echo "$count Pythons from 3.10 on found here, not two: set PYTHONS"; exit 1; }
    figure "Pythons with the same wheel" ">= 2" "$count" ok
}

wheel() {
    build_wheel
    on_every_python
}

# What a build needs is in the caches of cargo and pip after the first one.
offline() {
    local place=$PWD/target/venv-offline builder=$PWD/target/venv
    environment "${PYTHON:-python3}" "$builder"
    cargo fetch --quiet --locked
    rm -rf "$place"
    "${PYTHON:-python3}" -m venv "$place"
    # What a machine has that built Python packages before: maturin, and numpy to import the package.
    "$builder/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir target/tools maturin==1.16.0 numpy
    install "$place" --no-index --no-deps target/tools/*.whl
    # In a network of its own, where there is none, if the system allows that.
    local alone=()
    ! unshare -rn true 2>/dev/null || alone=(unshare -rn)
    CARGO_NET_OFFLINE=true CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} PATH=$place/bin:$PATH \
        "${alone[@]}" "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-build-isolation .
    (cd "$place" && bin/python -c 'import veilgrad; print("built and installed without a network:", veilgrad.__version__)')
}

all() {
    local place=$peers_place bench=$PWD/../../benches/python.py
    build_wheel
    on_every_python "${quick:+2}"
    peer_environment "$place"
    # The sources may be installed there for development.
    "$place/bin/python" -m pip uninstall --quiet --yes veilgrad 2>/dev/null || true
    install "$place" --no-deps "$file"
    tests_of_wheel "$place" "Opacus, dp_accounting, JAX Privacy" no-skips "${PEER_TESTS[@]/#/$PWD/}" \
        --doctest-modules --pyargs veilgrad.dp_accounting veilgrad.jax_privacy veilgrad.opacus
    # Not beside the sources, which Python would find instead of the wheel.
    (cd "$place" && bin/python "$bench" ${quick:+--quick} --figures "$figures" accounting calibration training accuracy classifier)
}

table() {
    [ ! -s "$figures" ] || printf '\n%-52s %-16s %-22s\n' "what" limit found
    awk -F '\t' '{ printf "%-52s %-16s %-22s %s\n", $1, $2, $3, $4 }' "$figures"
    rm -f "$figures"
}

quick=""
[ "${2:-}" != --quick ] || quick=yes
case "${1:-development}" in
    development | wheel | flower | peers | offline | all) "${1:-development}" ;;
    *) echo "usage: test.sh [development|wheel|flower|peers|offline|all [--quick]]"; exit 2 ;;
esac
