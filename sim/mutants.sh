#!/usr/bin/env bash
# Enables every planted bug, one at a time, in one build that contains all of them. Each must be
# caught within the seeds that are tried, and the build without a planted bug must have no findings.
# Arguments are passed to `pagelith-sim mutants`:
#   sim/mutants.sh --only PinIgnored --results FILE
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
planted() { # CARGO'S ARGUMENTS
    cargo "$@" --features pagelith-mutants/planted
}
# Both builds share the dependencies and so write their program to the same path. This one is copied
# away, and the other is linked there again even if this script fails.
put_back() { cargo build --quiet --release -p pagelith-sim; }
trap put_back EXIT
planted build --quiet --release -p pagelith-sim
mkdir -p "$target/mutants"
cp -f "$target/release/pagelith-sim" "$target/mutants/pagelith-sim"
tests_of() { # WHICH...: the file of a test program
    planted test --release "$@" --no-run --message-format json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}
io=$(tests_of -p pagelith-io --lib)
groups=$(tests_of -p pagelith-sim --test groups)
pins_and_clears=$(tests_of -p pagelith-sim --test pins_and_clears)
peers=$(tests_of -p pagelith --test peers)
tombstones=$(tests_of -p pagelith --test tombstones_are_carried_forward)
rdma=$(tests_of -p pagelith-transport --test rdma)
devices=$(tests_of -p pagelith-io --test devices)
put_back
"$target/mutants/pagelith-sim" mutants --tests "io=$io" --tests "groups=$groups" --tests "pins_and_clears=$pins_and_clears" \
    --tests "peers=$peers" --tests "tombstones=$tombstones" --tests "rdma=$rdma" \
    --tests "devices=$devices" "$@"
