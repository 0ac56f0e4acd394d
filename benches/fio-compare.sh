#!/bin/sh
# Compares SSD gets or puts of the store with fio: same directory and sizes, runs alternate within
# the same minute. Prints medians, and the median of the ratios within each run.
#
#   benches/fio-compare.sh DIR [OBJECT_BYTES] [BATCH] [SECONDS] [RUNS] [get|put]
#
# get: the store is warm: it caches as many headers as PAGELITH_SSD__HEADERS_BYTES allows. fio reads
# whole blocks of 4096 bytes at random. put: fio writes as the store does by default, 1 MiB
# sequential, 8 in flight; and once more with 256 in flight, since eight buffers stay in the
# processor's cache, and put objects do not. Only the objects' bytes count on both sides. Both have
# huge pages: as root they are reserved for fio meanwhile; if that fails, fio has pages of 4 KiB,
# and the script prints so. DIR is on the file system to measure and is left unchanged;
# DIR/pagelith-fio-compare is created and removed. Sizes are in bytes. PAGELITH names the program
# (default: a release build of this repository).
set -eu

dir=${1:?usage: fio-compare.sh DIR [OBJECT_BYTES] [BATCH] [SECONDS] [RUNS] [get|put]}
object_bytes=${2:-1048576}
batch=${3:-32}
seconds=${4:-5}
runs=${5:-5}
op=${6:-get}
# Batches in flight.
depth=4
# fio's parameters: mode, transfer length, number in flight, and a number in flight whose memory
# exceeds the cache; the share of object bytes; and the field of its bandwidth in KiB/s in the terse
# format, version 3.
padded=$(((object_bytes + 4095) / 4096 * 4096))
case $op in
get) data=$((1 << 30)) how=randread length=$padded many=$((batch * depth)) cold=0 share=$object_bytes field=7 ;;
put) data=$((8 << 30)) how=write length=1048576 many=8 cold=256 share=1048576 field=48 ;;
*) echo "unknown operation $op: expected get or put" >&2 && exit 2 ;;
esac

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
reserved=/proc/sys/vm/nr_hugepages
before=$(cat $reserved)
pages=$((before + (many + cold) * length / 2097152 + 16))
give_back() {
    rm -rf "$work"
    { echo "$before" >$reserved; } 2>/dev/null || true
}
trap give_back EXIT
memory=
if { echo $pages >$reserved; } 2>/dev/null && [ "$(cat $reserved)" -ge $pages ]; then
    memory=--mem=mmaphuge
else
    echo "no huge pages could be reserved; fio uses pages of 4 KiB"
fi
trap 'exit 1' INT TERM

# A field of the store's part of a JSON line, or of the bare loop's part, which is the object
# `limit`.
own() { echo "$line" | sed -n "s/\"limit\":{[^}]*}//; s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"; }
bare() { echo "$line" | sed -n "s/.*\"limit\":{[^}]*\"$1\":\([0-9.e+-]*\).*/\1/p"; }

# fio's bandwidth in GB/s (10^9) of object bytes with IN_FLIGHT, and its CPU seconds per GB; fields
# 88 and 89 are CPU in percent.
fio_run() { # IN_FLIGHT
    out=$(fio --name=limit --filename="$work/fio" --size=$data --rw=$how --bs="$length" --iodepth="$1" \
        --ioengine=io_uring --direct=1 --minimal --terse-version=3 $memory --time_based --ramp_time=1 --runtime="$seconds")
    echo "$out" | awk -F';' -v field=$field -v share="$share" -v of="$length" 'NF > 89 && $5 == 0 {
        gb = $field * 1024 / 1e9 * share / of
        print gb, (gb > 0) ? ($88 + $89) / 100 / gb : 0
    }'
}

# Fills both sides before the measurement.
fio --name=fill --filename="$work/fio" --size=$data --rw=write --bs=1M --iodepth=8 --ioengine=io_uring --direct=1 \
    --end_fsync=1 --minimal >/dev/null
store_run() {
    "$PAGELITH" bench --tier ssd --op $op --io uring --object-bytes "$object_bytes" --batch "$batch" \
        --depth $depth --data "$data" --dir "$work/store" --rounds 1 --seconds "$((2 * seconds))" --json 2>/dev/null
}
store_run >/dev/null

: >"$work/runs"
run=0 far=0
while [ "$run" -lt "$runs" ]; do
    # fio faults in its memory in the first second; the store's is touched before its measurement
    # starts.
    limit=$(fio_run "$many")
    [ $cold = 0 ] || far=$(fio_run $cold)
    line=$(store_run)
    # Puts do not report it.
    sum=$(bare checksum_cpu_s_per_gb)
    echo "$limit $(own gb_per_s) $(own cpu_s_per_gb) $(bare gb_per_s) $(bare cpu_s_per_gb) ${sum:-0} ${far%% *}" >>"$work/runs"
    run=$((run + 1))
done
if ! awk 'NF != 8 || $1 <= 0 { exit 1 }' "$work/runs"; then
    echo "fio or the store failed in a run: fio's GB/s and CPU-s/GB, the store's, the bare loop's, the checksum's CPU, fio's GB/s from cold memory" >&2
    cat "$work/runs" >&2
    exit 1
fi

# The median over the runs of an expression of awk's fields.
median() {
    awk "{ print $1 }" "$work/runs" | sort -g |
        awk '{ v[NR] = $1 } END { printf "%.3f", (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
all() { awk "{ printf \"%.2f \", $1 }" "$work/runs"; }
echo "op=$op object_bytes=$object_bytes batch=$batch depth=$depth seconds=$seconds runs=$runs dir=$dir"
echo "fio   GB/s: $(all '$1')median $(median '$1'), CPU-s/GB $(median '$2')"
echo "store GB/s: $(all '$3')median $(median '$3'), CPU-s/GB $(median '$4')"
echo "bare  GB/s: $(all '$5')median $(median '$5'), CPU-s/GB $(median '$6')"
[ $op = put ] || echo "CPU-s/GB of a pass of the checksum: median $(median '$7'); fio's and 1.2 of that: $(median '$2 + 1.2 * $7')"
echo "store / fio = $(median '$3 / $1'), bare / fio = $(median '$5 / $1'), store / bare = $(median '$3 / $5')"
[ $cold = 0 ] || echo "store / fio with $cold in flight ($(all '$8')) = $(median '$3 / $8')"
