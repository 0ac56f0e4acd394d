#!/usr/bin/env bash
# Replays a trace twice with a store process as remote tier. The first replay fills it; amid the
# second one it is killed and started again. In the virtual machine the bytes travel by RDMA:
#
#   sim/rdma/vm.sh --netdev pair -- sim/rdma/replay.sh rdma PROGRAM [ARGUMENT...]
#   sim/rdma/replay.sh tcp PROGRAM [ARGUMENT...]
#
# PROGRAM is `pagelith`, and ARGUMENTs are those of `replay`. Exit status: 0; 1 if a byte was wrong,
# if the second replay had no hits from `remote`, or if one of the two processes sent no byte.
set -euo pipefail
transport=$1 program=$2
shift 2
directory=$(mktemp -d)
address=127.0.0.1:7411 metrics=127.0.0.1:7412
serve=("$program" serve --listen "tcp:$address" --metrics "$metrics" --dir "$directory/store")
serve+=(--dram 16MiB --ssd 512MiB --staging 8MiB --transfer 8MiB)
# Without SSD and with little memory, pages come from the remote tier.
replay=("$program" replay --json --remote "$transport:$address" --dram 4MiB --ssd 0 --staging 8MiB "$@")
sent='pagelith_bytes_(memory|ssd)_total'
if [ "$transport" = rdma ]; then
    serve+=(--rdma)
    serve=(env PAGELITH_RDMA__DEVICES=rxe1 "${serve[@]}")
    export PAGELITH_RDMA__DEVICES=rxe0
    sent=pagelith_rdma_bytes_written_total
fi

server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -rf "$directory"' EXIT
start() {
    "${serve[@]}" >"$directory/$1" &
    server=$!
    until grep -q listening "$directory/$1"; do
        kill -0 "$server" || { echo "replay.sh: the store process ended" >&2; exit 1; }
        sleep 0.1
    done
}
# A counter of the store process.
counter() {
    exec 3<>"/dev/tcp/${metrics/:/\/}"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    awk -v name="^$1\$" '$1 ~ name { sum += $2 } END { print sum + 0 }' <&3
    exec 3>&-
}
number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$directory/report"; }

start first
"${replay[@]}" >"$directory/report"
cat "$directory/report"
bytes=$(number bytes_put)
before=$(counter "$sent")
"${replay[@]}" >"$directory/report" 2>"$directory/log" &
client=$!
# In the middle: a third of the bytes of all pages was sent.
until [ $(($(counter "$sent") - before)) -gt $((bytes / 3)) ]; do sleep 0.1; done
sent_first=$(($(counter "$sent") - before))
kill -9 "$server"
wait "$server" || true
# The replay notices, and goes on for as long as it takes to store some pages. Then it is stopped
# until the process has started again and may be called.
until grep -q 'peer cannot be reached' "$directory/log"; do sleep 0.1; done
kill -STOP "$client"
start second
sleep 5
kill -CONT "$client"
wait "$client"
cat "$directory/log"
cat "$directory/report"
sent_second=$(counter "$sent")
remote=$(sed -n 's/.*"prefix_hits":{[^}]*"remote":\([0-9]*\).*/\1/p' "$directory/report")
wrong=$(number wrong_bytes)
echo "transport=$transport remote_hits=$remote wrong_bytes=$wrong" \
    "bytes_sent_before_the_kill=$sent_first bytes_sent_after_it=$sent_second"
[ "$remote" -gt 0 ] && [ "$wrong" = 0 ] && [ "$sent_second" -gt 0 ]
