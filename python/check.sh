#!/usr/bin/env bash
# Builds the wheel, installs it into an environment of its own, compares its stubs with what is in it, checks its types, and runs
# its tests there. Needs a Python from 3.10 on with venv, a Rust toolchain, and a package index for maturin, which builds it, and mypy.
#
#   python/check.sh [PYTHON]          PYTHON is python3 unless it is given
#   python/check.sh build [PYTHON]    all but the tests
#   python/check.sh test              the tests, of what was built: some wait for a store process for 0.3 s, so nothing heavy beside them
set -euo pipefail
cd "$(dirname "$0")"
what=all
case ${1:-} in build | test) what=$1; shift ;; esac
python=${1:-python3}
out=${CARGO_TARGET_DIR:-$PWD/../target}/python
if [ "$what" != test ]; then
    mkdir -p "$out"
    # A fresh one: what was installed before proves nothing.
    rm -rf "$out/env" "$out/wheels"
    "$python" -m venv "$out/env"
    CARGO_TARGET_DIR=$out "$out/env/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$out/wheels" .
    "$out/env/bin/pip" install --quiet --disable-pip-version-check --no-index "$out/wheels"/pagelith-*.whl
    # The store process that tests attach to: the program as the workspace's tests build it, so that their crates are built once.
    cargo build --quiet --profile test --manifest-path ../Cargo.toml --target-dir "${CARGO_TARGET_DIR:-../target}" -p pagelith-cli
fi
STORE_PROGRAM=$(realpath "${CARGO_TARGET_DIR:-../target}/debug/pagelith")
export STORE_PROGRAM
# Not from this folder, where the sources are found before the wheel.
cd "$out"
if [ "$what" != test ]; then
    "$out/env/bin/pip" install --quiet --disable-pip-version-check mypy
    env/bin/python -m mypy.stubtest pagelith._native
    # Adapters import their engines, which are not here.
    env/bin/python -m mypy --ignore-missing-imports --package pagelith
    [ "$what" = all ] || exit 0
fi
for name in $(env | sed -n 's/^\(PAGELITH_[^=]*\)=.*/\1/p'); do unset "$name"; done
exec env/bin/python -W error -m unittest discover --start-directory "$OLDPWD/tests" --verbose
