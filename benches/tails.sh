#!/bin/sh
# p99 of reads concurrent with a writer, by the writer's rate as a share of its rate alone.
#
#   benches/tails.sh DIR [SECONDS] [OBJECT_BYTES]
#
# The blocking call reads one object at a time, in random order; a second thread puts objects of 1
# MiB at a fixed rate, and reclaim frees space for them. DIR is on the file system to measure;
# DIR/pagelith-tails is created and removed. SECONDS are for each row. PAGELITH names the program
# (default: a release build of this repository). PAGELITH_SSD__WRITE_DEPTH_READING sets how many
# writes may be in flight during reads. Run nothing else on the machine meanwhile.
set -eu

dir=${1:?usage: tails.sh DIR [SECONDS] [OBJECT_BYTES]}
seconds=${2:-10}
bytes=${3:-1048576}
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${PAGELITH:-}" ]; then
    cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p pagelith-cli
    PAGELITH=${CARGO_TARGET_DIR:-$root/target}/release/pagelith
fi
work=$dir/pagelith-tails
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# A field of the store's part of a JSON line.
own() { echo "$line" | sed -n "s/\"limit\":{[^}]*}//; s/.*\"$1\":\([^,}]*\).*/\1/p"; }
bench() {
    line=$("$PAGELITH" bench --tier ssd --object-bytes "$bytes" --data 2GiB --rounds 5 --seconds "$seconds" --json \
        --dir "$work" "$@" 2>/dev/null)
}

bench --op put --batch 8
alone=$(own gb_per_s)
bench --op get --batch 1 --depth 1
idle=$(own p99_us)
echo "alone the writer writes $alone GB/s"
echo "| requested write rate | achieved, of the rate alone | reads GB/s | p50 us | p99 us | to idle | p99.9 us |"
echo "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
echo "| 0 | 0 | $(own gb_per_s) | $(own p50_us) | $idle | 1.00 | $(own p999_us) |"
for share in 0.125 0.25 0.5 0.75 1 2; do
    # Not %d, which is limited to 2^31 in some implementations.
    rate=$(awk "BEGIN { printf \"%.0f\", $share * $alone * 1e9 }")
    bench --op mixed --batch 1 --depth 1 --write-rate "${rate}B"
    awk "BEGIN { printf \"| %s | %.2f | %s | %s | %s | %.2f | %s |\\n\", \"$share\", $(own written_gb_per_s) / $alone,
        \"$(own gb_per_s)\", \"$(own p50_us)\", \"$(own p99_us)\", $(own p99_us) / $idle, \"$(own p999_us)\" }"
done
