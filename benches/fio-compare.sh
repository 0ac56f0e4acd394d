#!/bin/sh
# SSD reads of the store beside fio: same directory, same sizes, same minute, in turns; medians and their ratio.
#
#   benches/fio-compare.sh DIR [OBJECT_BYTES] [BATCH] [SECONDS] [RUNS]
#
# DIR is on the file system to measure and is left as it was found, but for DIR/pagelith-fio-compare, which is
# removed. Sizes are in bytes. PAGELITH names the program (default: a release build of this repository).
set -eu

dir=${1:?usage: fio-compare.sh DIR [OBJECT_BYTES] [BATCH] [SECONDS] [RUNS]}
object_bytes=${2:-1048576}
batch=${3:-32}
seconds=${4:-5}
runs=${5:-5}
# Batches in flight.
depth=4
data=$((1024 * 1024 * 1024))

if ! command -v fio >/dev/null 2>&1; then
    echo "skipped: fio is not installed"
    exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${PAGELITH:-}" ]; then
    cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p pagelith-cli
    PAGELITH=${CARGO_TARGET_DIR:-$root/target}/release/pagelith
fi

work=$dir/pagelith-fio-compare
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# The bandwidths of a JSON line: the store's own comes first, the limit's stands inside of `limit`.
store_rate() { sed -n 's/^[^{]*{[^{]*"gb_per_s":\([0-9.e+-]*\).*"limit".*/\1/p'; }
bare_rate() { sed -n 's/.*"limit":{[^}]*"gb_per_s":\([0-9.e+-]*\).*/\1/p'; }

# fio's read bandwidth in GB/s (10^9). The terse format has it in KiB/s, field 7 of version 3.
fio_run() {
    fio --name=limit --filename="$work/fio" --size=$data --rw="$1" --bs="$2" --iodepth="$((batch * depth))" \
        --ioengine=io_uring --direct=1 --minimal --terse-version=3 $3 |
        awk -F';' 'NF > 40 { print $7 * 1024 / 1e9 }'
}

# Fill both sides before anything is timed.
fio_run write 1048576 "--end_fsync=1" >/dev/null
store_run() {
    "$PAGELITH" bench --tier ssd --op get --io uring --object-bytes "$object_bytes" --batch "$batch" \
        --depth $depth --data "$data" --dir "$work/store" --rounds 1 --seconds "$((2 * seconds))" --json 2>/dev/null
}
store_run >/dev/null

: >"$work/fio.txt"
: >"$work/store.txt"
: >"$work/bare.txt"
run=0
while [ "$run" -lt "$runs" ]; do
    fio_run randread "$object_bytes" "--time_based --runtime=$seconds" >>"$work/fio.txt"
    line=$(store_run)
    echo "$line" | store_rate >>"$work/store.txt"
    echo "$line" | bare_rate >>"$work/bare.txt"
    run=$((run + 1))
done

median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
fio_median=$(median "$work/fio.txt")
store_median=$(median "$work/store.txt")
bare_median=$(median "$work/bare.txt")
echo "object_bytes=$object_bytes batch=$batch depth=$depth seconds=$seconds runs=$runs dir=$dir"
echo "fio   GB/s: $(tr '\n' ' ' <"$work/fio.txt") median $fio_median"
echo "store GB/s: $(tr '\n' ' ' <"$work/store.txt") median $store_median"
echo "bare  GB/s: $(tr '\n' ' ' <"$work/bare.txt") median $bare_median"
awk "BEGIN { printf \"store / fio = %.3f\n\", $store_median / $fio_median }"
