#!/bin/sh
# `pagelith bench` on DRAM and SSD at the relevant sizes, each with the limit of the same run
# (docs/performance.md).
#
#   benches/table.sh DIR [SECONDS]
#
# DIR is on the file system to measure; DIR/pagelith-table is created and removed. SECONDS are for
# each row. PAGELITH names the program (default: a release build of this repository). Run nothing
# else on the machine meanwhile.
set -eu

dir=${1:?usage: table.sh DIR [SECONDS]}
seconds=${2:-10}
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${PAGELITH:-}" ]; then
    cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p pagelith-cli
    PAGELITH=${CARGO_TARGET_DIR:-$root/target}/release/pagelith
fi
work=$dir/pagelith-table
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# A field of the store's part of a JSON line, or of the limit's part.
own() { echo "$line" | sed -n "s/\"limit\":{[^}]*}//; s/.*\"$1\":\([^,}]*\).*/\1/p"; }
limits() { echo "$line" | sed -n "s/.*\"limit\":{\([^}]*\)}.*/,\1,/; s/.*,\"$1\":\([^,]*\),.*/\1/p" | tr -d '"'; }

row() { # TIER OP OBJECT_BYTES BATCH DEPTH [MORE FLAGS]
    tier=$1 op=$2 bytes=$3 batch=$4 depth=$5
    shift 5
    line=$("$PAGELITH" bench --tier "$tier" --op "$op" --object-bytes "$bytes" --batch "$batch" --depth "$depth" \
        --seconds "$seconds" --rounds 5 --json --dir "$work" "$@" 2>/dev/null)
    rm -rf "$work"/*
    echo "| $tier $op | $bytes | $batch x $depth | **$(own ratio)** of $(limits what) | $(own cpu_s_per_gb) | $(limits cpu_s_per_gb) |" \
        "$(limits checksum_cpu_s_per_gb) | $(own p50_us) | $(own p99_us) | $(own syscalls_per_object) |"
}

echo "| what | object | batch x depth | ratio to the limit of the run | CPU-s/GB | limit's | checksum's | p50 us | p99 us | calls/object |"
echo "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
for bytes in 64KiB 1MiB 4MiB; do
    row dram get $bytes 32 4
    row dram put $bytes 32 4
done
for bytes in 64KiB 256KiB 515328 1MiB 2561024 4MiB; do
    row ssd get $bytes 32 4
done
row ssd get 64KiB 1 1
for bytes in 64KiB 1MiB 4MiB; do
    row ssd put $bytes 32 4
done
row ssd mixed 1MiB 8 4
row ssd open 4KiB 32 1 --data 4GiB
row ssd open-clean 4KiB 32 1 --data 4GiB
row dram exists 4KiB 1024 1
row dram exists 4KiB 1024 1 --data 4GiB
row ssd exists 4KiB 1024 1
