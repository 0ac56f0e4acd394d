#!/usr/bin/env bash
# Make a seed corpus for each target from the golden files, so that no bytes are kept twice.
set -euo pipefail
cd "$(dirname "$0")"
golden=../layouts/tests/golden/v1

blocks() { # FILE FIRST COUNT: so many 4096-byte blocks of a file
    dd if="$golden/$1" bs=4096 skip="$2" count="$3" status=none
}

mkdir -p corpus/{key_text,record_decode,segment_scan,footer_decode,manifest_decode,checkpoint_decode}
n=0
while read -r line; do
    printf '%s' "$line" >"corpus/key_text/key$n"
    n=$((n + 1))
done <"$golden/keys.txt"
blocks segment.bin 1 1 >corpus/record_decode/group
blocks segment.bin 5 1 >corpus/record_decode/object
blocks segment.bin 31 1 >corpus/record_decode/tombstones
blocks segment.bin 0 5 >corpus/segment_scan/group
# The first byte is the segment's length in blocks.
{ printf '\x24'; blocks segment.bin 35 1; } >corpus/footer_decode/footer
# The first byte is the length of the first copy in blocks.
{ printf '\x03'; cat "$golden/manifest.0.bin" "$golden/manifest.1.bin"; } >corpus/manifest_decode/two_copies
{ printf '\x03'; cat "$golden/manifest.0.bin" "$golden/superblock_newer.bin"; } >corpus/manifest_decode/newer
head -c 4608 "$golden/checkpoint.bin" >corpus/checkpoint_decode/marks
{ head -c 4096 "$golden/checkpoint.bin"; tail -c 512 "$golden/checkpoint.bin"; } >corpus/checkpoint_decode/entries
