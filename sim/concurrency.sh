#!/usr/bin/env bash
# What threads can do to one another, searched: loom (the small kernels, every order of their steps) and shuttle (a real
# store over the simulated disk, many schedules). Needs the stable toolchain alone; builds into target/loom and
# target/shuttle, so that no other build is disturbed. Ends with an error when a checker found something.
#
#   sim/concurrency.sh                    both
#   sim/concurrency.sh loom|shuttle [NAME...]   one of them; with the tests whose names have NAME in them
#
#   TEST_PAGELITH_SCHEDULES=100   shuttle: percent of the usual number of schedules
#   TEST_PAGELITH_SEED=1          shuttle: the first batch's seed
#   TEST_PAGELITH_BATCH=pct:17    shuttle: one batch alone, as a finding names it
#   TEST_PAGELITH_LIMIT=600       seconds that the tests of one checker may take
set -uo pipefail
cd "$(dirname "$0")/.."
limit=${TEST_PAGELITH_LIMIT:-600}

run() {
    local checker=$1 out status
    shift
    out=$(mktemp)
    export RUSTFLAGS="--cfg $checker"
    local build=(cargo test -q -p pagelith-concurrency --target-dir "target/$checker" --test "$checker")
    "${build[@]}" --no-run || return
    # A schedule that never ends is a finding too.
    timeout "$limit" "${build[@]}" -- --nocapture --test-threads 2 "$@" 2>&1 | tee "$out"
    status=${PIPESTATUS[0]}
    [ "$status" -ne 124 ] || echo "$checker did not end within $limit s"
    awk -v checker="$checker" '
        { for (i = 1; i <= NF; i++) if ($i ~ /^(orders|schedules)=/) { split($i, n, "="); sum += n[2]; runs++ } }
        END { printf "== %s: %d tests, %d %s\n", checker, runs, sum, checker == "loom" ? "orders" : "schedules" }' "$out"
    rm -f "$out"
    return "$status"
}

case ${1:-both} in
both) run loom && run shuttle ;;
loom | shuttle) run "$@" ;;
*)
    echo "usage: $0 [loom|shuttle [NAME...]]" >&2
    exit 2
    ;;
esac
