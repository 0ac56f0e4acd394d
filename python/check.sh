#!/usr/bin/env bash
# Builds the wheel, installs it into a new environment, compares its stubs with its content, checks
# its types, and runs its tests there. Needs Python 3.10 or later with venv, a Rust toolchain, and a
# package index for maturin, which builds the wheel, and for mypy.
#
#   python/check.sh [PYTHON]          PYTHON is python3 by default
#   python/check.sh build [PYTHON]    all but the tests
#   TEST_PAGELITH_WHEEL_PROFILE=quick  builds the wheel sooner, for tests only
#   python/check.sh test              the tests, of the last build: some wait 0.3 s for a store
#                                     process, so run nothing heavy meanwhile
set -euo pipefail
cd "$(dirname "$0")"
what=all
case ${1:-} in build | test) what=$1; shift ;; esac
python=${1:-python3}
out=${CARGO_TARGET_DIR:-$PWD/../target}/python
# Cargo's profile of the wheel: release is what users get, and quick is built sooner.
profile=${TEST_PAGELITH_WHEEL_PROFILE:-release}
if [ "$what" != test ]; then
    mkdir -p "$out"
    # A new environment: an earlier installation must not be tested.
    rm -rf "$out/env" "$out/wheels"
    "$python" -m venv "$out/env"
    CARGO_TARGET_DIR=$out MATURIN_PEP517_ARGS="--profile $profile" "$out/env/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$out/wheels" .
    "$out/env/bin/pip" install --quiet --disable-pip-version-check --no-index "$out/wheels"/pagelith-*.whl
    # The store process for tests that attach, and the fake verbs library and driver: as the workspace's tests
    # build them, so that their crates are built once.
    cargo build --quiet --profile test --manifest-path ../Cargo.toml --target-dir "${CARGO_TARGET_DIR:-../target}" -p pagelith-cli -p pagelith-fake-verbs -p pagelith-fake-device
    # A store over RDMA, from the wheel's crates.
    cargo build --quiet --profile "$profile" --target-dir "$out" -p pagelith-rdma-store
fi
STORE_PROGRAM=$(realpath "${CARGO_TARGET_DIR:-../target}/debug/pagelith")
FAKE_VERBS=$(realpath "${CARGO_TARGET_DIR:-../target}/debug/libpagelith_fake_verbs.so")
FAKE_DEVICE=$(realpath "${CARGO_TARGET_DIR:-../target}/debug/libpagelith_fake_device.so")
RDMA_STORE=$(realpath "$out/$profile/libpagelith_rdma_store.so")
export STORE_PROGRAM FAKE_VERBS FAKE_DEVICE RDMA_STORE
# Not in this directory, where Python would import the sources instead of the wheel.
cd "$out"
if [ "$what" != test ]; then
    "$out/env/bin/pip" install --quiet --disable-pip-version-check mypy
    env/bin/python -m mypy.stubtest pagelith._native
    # Adapters import their engines, which are not installed here.
    env/bin/python -m mypy --ignore-missing-imports --package pagelith
    [ "$what" = all ] || exit 0
fi
for name in $(env | sed -n 's/^\(PAGELITH_[^=]*\)=.*/\1/p'); do unset "$name"; done
exec env/bin/python -W error -m unittest discover --start-directory "$OLDPWD/tests" --verbose
