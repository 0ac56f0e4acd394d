#!/usr/bin/env bash
# Makes a seed corpus for each target from the golden files, so that no bytes are stored twice.
set -euo pipefail
cd "$(dirname "$0")"
golden=../layouts/tests/golden/v1

blocks() { # FILE FIRST COUNT: COUNT blocks of 4096 bytes, from block FIRST
    dd if="$golden/$1" bs=4096 skip="$2" count="$3" status=none
}

mkdir -p corpus/{key_text,client_names,record_decode,segment_scan,footer_decode,manifest_decode,checkpoint_decode} \
    corpus/{learned_decode,wire_decode,store_open,ops_model,server,config,trace}
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
cp "$golden/learned.bin" corpus/learned_decode/learned

cp ../layouts/tests/golden/wire1/*.bin corpus/wire_decode/

# Three bytes select the configuration (two ranks, one stage); the rest is a client's text.
hash=$(printf 'ab%.0s' {1..32})
client() { # NAME KIND TEXT: the kind in hexadecimal
    { printf '%b' "\\x$2\\x0a\\x05"; printf '%s' "$3"; } >"corpus/client_names/$1"
}
client sglang 00 "${hash}_0_k"
client sglang_draft 00 "${hash}_1_draft_v"
client sglang_tagged 06 "t_o-m_${hash}_1_k"
client sglang_split 08 "${hash}_0_k"
client vllm 07 "p@m@tp_rank:1@pcp0@dcp0@pp_rank:0@group:0@$hash"
client vllm_shared 0f "p@m@store_tp:8@store_pp:1@store_format:tp_shared_lbhnc@tp_rank:1@pcp0@dcp0@pp_rank:0@group:0@$hash"
client opaque 01 'anything else'

# How the store ended, then edits: file, block, offset (two bytes), edit, flags (bit 0: correct the
# checksum).
hex() { # FILE BYTES: hexadecimal
    printf '%b' "$(printf '%s' "$2" | tr -d ' ' | sed 's/../\\x&/g')" >"corpus/$1"
}
edit() { hex "store_open/$1" "$2"; } # NAME BYTES
edit closed 00
edit dropped 01
edit manifest_copy_gone '00 01 00 0000 c0 00 01 01 0000 c0 00'
edit manifest_one_block '01 01 01 0046 e0 00'
edit incarnation_forged '01 01 01 0040 08 01 02 00 00 00 00 00 00 00 02 01 0040 08 01 02 00 00 00 00 00 00 00'
edit generation_forged '00 01 02 0050 08 01 ff ff 00 00 00 00 00 00'
edit checkpoint_head '00 04 00 0030 e1 00'
edit checkpoint_head_forged '00 04 00 0048 08 01 ff ff ff 00 00 00 00 00'
edit checkpoint_chunk_forged '00 04 01 001c 04 01 ff 00 00 00'
edit checkpoint_entry_forged '00 04 11 0054 04 01 ff ff ff ff'
edit segment_head_gone '01 00 00 0000 c0 00'
edit record_header '01 00 01 00c8 e2 00'
edit record_forged '01 00 01 0048 08 01 05 00 00 00 00 00 00 00'
edit record_misdirected '01 00 0c 0001 d0 00'
edit footer '01 00 ff 0fe0 e3 00'

# The lowest bit of the first byte is the format, the other bits the machine's memory; variables
# follow the text.
{ printf '\x80[dram]\nbytes = "1GiB"\npolicy = "s3fifo"\n[ssd]\nbytes = "8GiB"\ndirs = ["/a", "/b"]\n'
  printf '\0DRAM__BYTES=2GiB\0READ__DEPTH=128'; } >corpus/config/toml
{ printf '\x81{"ssd": {"bytes": 1073741824, "dirs": ["/a"], "segment_bytes": "16MiB"}, "deadline_ms": 5}'
  printf '\0SSD__DIRS=/c,/d\0STAGING__RATIO=0.5'; } >corpus/config/json
printf '\x80dram.bites = 1\ndram.promote = false\nindex.max_objects = 0\nssd.reinsert_ratio = nan' >corpus/config/wrong
printf '\x28[staging]\nbytes = "64KiB"\nratio = 0.1\n[groups]\ndeadline_ms = 1\n\0SSD__BYTES=1B' >corpus/config/relations

line='{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 7]}'
printf '%s\n\n%s' "$line" "$line" >corpus/trace/plain
printf '%s\n' "$line" | gzip -n >corpus/trace/gzipped
printf '%s\n{"timestamp": 0, "hash_ids": [1, 2.5]}' "$line" >corpus/trace/wrong

# The store, the faults, then operations of three bytes: an operation and a number.
ops() { # NAME STORE FLAGS OPERATION...: the numbers count up
    local name=$1 n=0 op
    { printf '%b' "\\x$2\\x00\\x$3"; shift 3
      for op in "$@"; do printf '%b' "\\x$op\\x$(printf %02x $((n % 256)))\\x00"; n=$((n + 1)); done; } >"corpus/ops_model/$name"
}
puts=$(printf '04 %.0s' {1..24})
# shellcheck disable=SC2086
ops put_get 07 00 $puts 15 00 01 02 03 0c 0d 0e 1c 00 01 1d 01 1e 01
# shellcheck disable=SC2086
ops crash 0b 01 $puts 08 09 0a 15 0f 10 $puts 1e 00 01 1f $puts 15 00 01 20 01 1b
# shellcheck disable=SC2086
ops constant 03 02 $puts 15 0f 12 13 01 1c 01

# Steps of a client: requests (a verb and three numbers), raw bytes, counts, arbitrary writes.
steps() { hex "server/$1" "$2"; } # NAME BYTES
steps asks '04 02 01 01 00 04 00 01 02 00 04 01 01 02 00 04 09 00 00 00 04 0a 00 00 00'
steps puts '04 05 06 06 05 04 05 07 07 01 04 08 06 06 00'
steps counts '04 02 01 01 00 06 00 00 00 00 00 01 00 00 0e 00 00 00 00 00 00 10 00'
steps anywhere '04 02 01 01 00 07 00 10 00 ff ff ff ff ff ff ff ff'
