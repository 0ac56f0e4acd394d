#!/usr/bin/env bash
# Tests over RDMA devices in a virtual machine. vm.sh says what it needs. A test without a device
# fails there.
#
#   sim/rdma/run.sh         all: verbs with one device and with two that have a wire between them;
#                           over the wire links, the behaviours of a store, a replay whose remote
#                           tier is killed, and an independent peer
#   sim/rdma/run.sh quick   a selection in one machine, for .ci/run
#
# TEST_PAGELITH_RDMA_CANCELS and TEST_PAGELITH_RDMA_KILLS lengthen the campaigns of
# transport/tests/rdma_devices.rs. TEST_PAGELITH_TRACE is a trace for the replay.
# TEST_PAGELITH_VM_TIMEOUT is the longest time of one machine in seconds (default 3600, quick 600).
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-all}
export TEST_PAGELITH_VERBS=libibverbs.so.1
if [ "$what" = quick ]; then
    export TEST_PAGELITH_RDMA_CANCELS=10 TEST_PAGELITH_RDMA_KILLS=2
    seconds=600
else
    seconds=3600
fi

# Sets `program` to the test program that cargo builds with these arguments.
build() {
    local built
    built=$(cargo test --no-run "$@" 2>&1) || { echo "$built" >&2; exit 1; }
    program=$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$built" | tail -n 1)
    [ -x "$program" ] || { echo "run.sh: cargo named no test program" >&2; exit 1; }
}

failed=0
# Commands of the next machine. Each runs, also after a failure.
script=
step() { script+="step $(printf '%q ' "$@")"$'\n'; }
machine() { # network
    local step='failed=0
step() {
    local began=$SECONDS
    echo "== $*"
    "$@" || { failed=1; echo "== FAILED: $*"; }
    echo "== took $((SECONDS - began)) s"
}
'
    echo "== a machine with network $1"
    sim/rdma/vm.sh --netdev "$1" --memory 4096 --timeout "${TEST_PAGELITH_VM_TIMEOUT:-$seconds}" \
        --env TEST_PAGELITH_VERBS --env TEST_PAGELITH_RDMA_CANCELS \
        --env TEST_PAGELITH_RDMA_KILLS -- bash -c "$step$script"'exit $failed' || failed=1
    script=
}

build -p pagelith-io --test verbs
verbs=$program
build -p pagelith-transport --test rdma_devices
links=$program
build -p pagelith --test behaviour
behaviours=$program

if [ "$what" = quick ]; then
    step "$verbs" --test-threads 2 operations:: registration::
    step "$links" --test-threads 1 cancels::memory_of kills::
    step "$behaviours" --test-threads 2 --exact \
        rdma::objects_of_every_size_are_got_from_memory_and_ssd \
        rdma::group_of_ten_objects_is_one_record_on_ssd
    machine pair
    exit "$failed"
fi

cargo build --quiet --profile test -p pagelith-cli
step "$verbs" --test-threads 2
machine veth
step "$verbs" --test-threads 2
step "$links" --test-threads 1 --nocapture
step "$behaviours" --test-threads 2 rdma::
trace=()
[ -z "${TEST_PAGELITH_TRACE:-}" ] || trace=(--trace "$TEST_PAGELITH_TRACE")
step sim/rdma/replay.sh rdma target/debug/pagelith "${trace[@]}" --requests 60 --object-bytes 4KiB
if command -v cmake >/dev/null && compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null &&
    [ -e /usr/include/infiniband/verbs.h ]; then
    manifest=(--manifest-path sim/rdma-peer/Cargo.toml --target-dir target/rdma-peer --locked)
    build "${manifest[@]}" --test layout
    "$program" || failed=1
    build "${manifest[@]}" --test peer
    step "$program" --test-threads 1
else
    echo "== independent peer: skipped, some of cmake, libclang-dev, libibverbs-dev are missing"
fi
machine pair
exit "$failed"
