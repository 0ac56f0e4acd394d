#!/usr/bin/env bash
# Runs Pagelith under the engines' own code: pages that one process stores are read by the next one
# and compared byte for byte.
#
#   [ENGINES="..."] python/clients/run.sh DIR
#
# DIR was created by setup.sh. Builds the wheel and the program, and three libraries for the tests over
# RDMA and a fake device. TEST_PAGELITH_WHEEL_PROFILE=quick builds the wheel sooner.
set -euo pipefail
engines=${ENGINES:-sglang vllm lmcache}
dir=$(realpath "${1:?a directory that setup.sh made}")
cd "$(dirname "$0")"
out=${CARGO_TARGET_DIR:-$PWD/../../target}
profile=${TEST_PAGELITH_WHEEL_PROFILE:-release}
mkdir -p "$out/python"
rm -rf "$out/python/wheels"
CARGO_TARGET_DIR=$out/python MATURIN_PEP517_ARGS="--profile $profile" "$dir/${engines%% *}/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$out/python/wheels" ..
cargo build --quiet --manifest-path ../../Cargo.toml --target-dir "$out" -p pagelith-cli -p pagelith-fake-verbs -p pagelith-fake-device
# From the wheel's crates.
cargo build --quiet --profile "$profile" --manifest-path ../Cargo.toml --target-dir "$out/python" -p pagelith-rdma-store
STORE_PROGRAM=$(realpath "$out/debug/pagelith")
FAKE_VERBS=$(realpath "$out/debug/libpagelith_fake_verbs.so")
FAKE_DEVICE=$(realpath "$out/debug/libpagelith_fake_device.so")
RDMA_STORE=$(realpath "$out/python/$profile/libpagelith_rdma_store.so")
LMCACHE_TESTS=$dir/lmcache_tests
export STORE_PROGRAM FAKE_VERBS FAKE_DEVICE RDMA_STORE LMCACHE_TESTS
for engine in $engines; do
    bin=$dir/$engine/bin
    "$bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps --no-index "$out/python/wheels"/pagelith-*.whl
    # SGLang builds its hash helper with ninja on its first use.
    modules=(test_"$engine"*.py)
    PATH="$bin:$PATH" "$bin/python" -W ignore -m unittest --verbose "${modules[@]%.py}"
done
