#!/usr/bin/env bash
# Every planted bug, one at a time, in one build that has them all: each must be caught within a minute, and the build
# without one must find nothing. Further arguments go to `pagelith-sim mutants`, as in
#   sim/mutants.sh --only PinIgnored --results FILE
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg pagelith_mutants"
target=target/mutants
cargo build --quiet --release -p pagelith-sim --target-dir $target
tests_of() { # WHICH...: the file of a test program
    cargo test --release "$@" --no-run --message-format json --target-dir $target 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}
exec $target/release/pagelith-sim mutants --tests "io=$(tests_of -p pagelith-io --lib)" \
    --tests "groups=$(tests_of -p pagelith-sim --test groups)" \
    --tests "pins_and_clears=$(tests_of -p pagelith-sim --test pins_and_clears)" "$@"
