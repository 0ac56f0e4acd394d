#!/usr/bin/env bash
# Runs every fuzz target for some seconds (first argument, default 20), two at a time. Prints one
# line for each target. The output of a failure is printed in full, and its input is in
# fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}

fuzz/seeds.sh
cargo +nightly fuzz build --fuzz-dir fuzz
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run() { # TARGET SECONDS LOGS
    local log=$3/$1
    if cargo +nightly fuzz run --fuzz-dir fuzz "$1" -- -max_total_time="$2" -rss_limit_mb=2048 -timeout=60 \
        -print_final_stats=1 >"$log" 2>&1; then
        echo "fuzz $1: $(grep -a 'number_of_executed_units' "$log" | tr -s ' :') $(grep -ao 'cov: [0-9]*' "$log" | tail -1)"
    else
        echo "fuzz $1: FAILED"
        cat "$log"
        return 1
    fi
}
export -f run
cargo +nightly fuzz list --fuzz-dir fuzz | xargs -P 2 -I{} bash -c 'run "$@"' _ {} "$seconds" "$logs"
