#!/usr/bin/env bash
# The tests of verbs over RDMA devices in a virtual machine: one device, then two with a wire between them. vm.sh says what it
# needs. A test without a device fails there.
#
#   sim/rdma/run.sh [ARGUMENT...]   arguments of the test program, such as a part of a test's name
set -euo pipefail
cd "$(dirname "$0")/../.."

built=$(cargo test -p pagelith-io --test verbs --no-run 2>&1) || { echo "$built" >&2; exit 1; }
program=$(sed -n 's/.*Executable.*(\(.*\))$/\1/p' <<<"$built")
[ -x "$program" ] || { echo "run.sh: cargo named no test program" >&2; exit 1; }

failed=0
for netdev in veth pair; do
    echo "== verbs over RDMA, network $netdev"
    TEST_PAGELITH_VERBS=libibverbs.so.1 sim/rdma/vm.sh --netdev "$netdev" --timeout 400 --env TEST_PAGELITH_VERBS -- \
        "$program" --test-threads 2 "$@" || failed=1
done
exit "$failed"
