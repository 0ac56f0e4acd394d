#!/usr/bin/env bash
# Runs the concurrency tests: loom (small kernels, every order of their steps) and shuttle (a real
# store on the simulated disk, many schedules). Needs only the stable toolchain. Builds into
# target/loom and target/shuttle, so other builds stay valid. Exits with an error if a checker found
# something.
#
#   sim/concurrency.sh                    both
#   sim/concurrency.sh loom|shuttle [NAME...]   one of them; only the tests whose names contain NAME
#
#   TEST_PAGELITH_SCHEDULES=100   shuttle: percentage of the usual number of schedules
#   TEST_PAGELITH_SEED=1          shuttle: the first batch's seed
#   TEST_PAGELITH_BATCH=pct:17    shuttle: only this batch, as a finding prints it
#   TEST_PAGELITH_LIMIT=600       time limit in seconds for the tests of one checker
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
    # A schedule that does not terminate is also a finding.
    timeout "$limit" "${build[@]}" -- --nocapture --test-threads 2 "$@" 2>&1 | tee "$out"
    status=${PIPESTATUS[0]}
    [ "$status" -ne 124 ] || echo "$checker did not end within its limit of $limit s (TEST_PAGELITH_LIMIT)"
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
