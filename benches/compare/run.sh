#!/bin/sh
# The same work through Pagelith, its peers and fio; the table on stdout, the raw results in RESULTS.
#
#   benches/compare/run.sh DIR RESULTS [FLAGS OF `pagelith-compare run`]
#
# DIR is on the file system to measure; a directory inside is made and removed. As root, which may drop the page cache.
# Who takes part: RocksDB where its headers are (Debian: librocksdb-dev, and libclang-dev to read them), fio where it is
# installed, NIXL where PYTHON (default python3) has nixl-cu12, numpy and xxhash. Who cannot is named.
# Leave the machine alone meanwhile.
set -eu

dir=${1:?usage: run.sh DIR RESULTS [FLAGS]}
results=${2:?usage: run.sh DIR RESULTS [FLAGS]}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
features=
if [ -e /usr/include/rocksdb/c.h ]; then
    # Linked as it is installed; without these its sources would be built.
    export ROCKSDB_LIB_DIR="/usr/lib/$(cc -dumpmachine)" ROCKSDB_INCLUDE_DIR=/usr/include
    features="--features rocksdb"
fi
cargo build --release --locked --quiet --manifest-path "$here/Cargo.toml" --target-dir "$target" $features
exec "$target/release/pagelith-compare" run --dir "$dir" --results "$results" --python "${PYTHON:-python3}" "$@"
