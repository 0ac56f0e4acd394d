#!/usr/bin/env bash
# Tests over RDMA devices in a virtual machine: one device, and two with a wire between them. vm.sh says what it needs. A test
# without a device fails there.
#
#   sim/rdma/run.sh [ARGUMENT...]   arguments of the test programs, such as a part of a test's name
#
# TEST_PAGELITH_RDMA_CANCELS and TEST_PAGELITH_RDMA_KILLS lengthen the campaigns of transport/tests/rdma_devices.rs.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TEST_PAGELITH_VERBS=libibverbs.so.1
variables=(--env TEST_PAGELITH_VERBS --env TEST_PAGELITH_RDMA_CANCELS --env TEST_PAGELITH_RDMA_KILLS)

# Sets `program` to the test program that cargo builds with these arguments.
build() {
    local built
    built=$(cargo test --no-run "$@" 2>&1) || { echo "$built" >&2; exit 1; }
    program=$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$built" | tail -n 1)
    [ -x "$program" ] || { echo "run.sh: cargo named no test program" >&2; exit 1; }
}

failed=0
run() { # title, network, threads, program, arguments
    local title=$1 netdev=$2 threads=$3 program=$4
    shift 4
    echo "== $title, network $netdev"
    sim/rdma/vm.sh --netdev "$netdev" --timeout "${TEST_PAGELITH_VM_TIMEOUT:-600}" "${variables[@]}" -- \
        "$program" --test-threads "$threads" "$@" || failed=1
}

build -p pagelith-io --test verbs
run verbs veth 2 "$program" "$@"
run verbs pair 2 "$program" "$@"
build -p pagelith-transport --test rdma_devices
run links pair 1 "$program" --nocapture "$@"

if command -v cmake >/dev/null && compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null && [ -e /usr/include/infiniband/verbs.h ]; then
    manifest=(--manifest-path sim/rdma-peer/Cargo.toml --target-dir target/rdma-peer --locked)
    build "${manifest[@]}" --test layout
    "$program" "$@" || failed=1
    build "${manifest[@]}" --test peer
    run "independent peer" pair 1 "$program" "$@"
else
    echo "== independent peer: skipped, some of cmake, libclang-dev and libibverbs-dev are not installed"
fi
exit "$failed"
