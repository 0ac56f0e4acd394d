#!/bin/sh
# Runs the same workload on Pagelith, its peers and fio; prints the table and writes the raw results
# to RESULTS.
#
#   benches/compare/run.sh DIR RESULTS [FLAGS OF `pagelith-compare run`]
#
# DIR is on the file system to measure; a directory in it is created and removed. Needs root to drop
# the page cache. RocksDB takes part if its headers are installed (Debian: librocksdb-dev, and
# libclang-dev to parse them), fio if it is installed, NIXL if PYTHON (default python3) has
# nixl-cu12, numpy and xxhash. A side that cannot run is reported. Run nothing else on the machine
# meanwhile.
set -eu

dir=${1:?usage: run.sh DIR RESULTS [FLAGS]}
results=${2:?usage: run.sh DIR RESULTS [FLAGS]}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
features=
if [ -e /usr/include/rocksdb/c.h ]; then
    # Links the installed library; without these variables its sources would be built.
    export ROCKSDB_LIB_DIR="/usr/lib/$(cc -dumpmachine)" ROCKSDB_INCLUDE_DIR=/usr/include
    features="--features rocksdb"
fi
cargo build --release --locked --quiet --manifest-path "$here/Cargo.toml" --target-dir "$target" $features
exec "$target/release/pagelith-compare" run --dir "$dir" --results "$results" --python "${PYTHON:-python3}" "$@"
