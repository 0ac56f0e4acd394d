#!/usr/bin/env bash
# A storm (python/tests/storm) over the Python module and a store process that are built with AddressSanitizer: 100,000 operations, with
# memory dropped, tasks cancelled and signals raised under them. Ends with an error if anything was found.
#
#   python/sanitize.sh [OPERATIONS [SEED]]
#
# Needs a nightly toolchain, a C compiler with `ar`, and a Python from 3.10 on; no package index. The Python is the one that is there and knows
# nothing of AddressSanitizer: it is started with the toolchain's own runtime before all other libraries, so that all memory of the
# process, Python's included, is the sanitizer's. Rust's std is not built with it, and what the kernel writes is not seen: for that the storm
# looks at memory itself. Builds into target/address.
set -uo pipefail
cd "$(dirname "$0")"
operations=${1:-100000}
seed=${2:-$RANDOM}
skip() {
    echo "== address sanitizer: python skipped, $1"
    exit 0
}
cargo +nightly --version >/dev/null 2>&1 || skip "no nightly toolchain"
for tool in cc ar; do command -v $tool >/dev/null 2>&1 || skip "there is no $tool"; done
# The interpreter itself: what starts it may be a script.
python=$(python3 -c 'import sys; assert sys.version_info >= (3, 10); print(sys.executable)' 2>/dev/null) || skip "there is no python3 from 3.10 on"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
runtime=$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.asan.a
[ -f "$runtime" ] || skip "the nightly toolchain has no AddressSanitizer for $host"

out=$PWD/../target/address
mkdir -p "$out/python"
build() {
    # With a target named, build scripts and macros are built without the sanitizer. What is asserted in tests is asserted here.
    RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" CARGO_BUILD_TARGET=$host CARGO_TARGET_DIR=$out \
        CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true cargo +nightly build --quiet --release --locked "$@"
}
began=$SECONDS
build && (cd .. && build -p pagelith-cli) || exit 1
rm -rf "$out/python/pagelith"
cp -r pagelith "$out/python/pagelith"
cp "$out/$host/release/lib_native.so" "$out/python/pagelith/_native.abi3.so"

# The runtime, which comes for programs, as a library. Its one part that a library cannot have starts it, as `start` does.
(
    cd "$out/python"
    cp "$runtime" runtime.a && chmod u+w runtime.a && ar d runtime.a asan_preinit.cpp.o
    cat >runtime.c <<'C'
void __asan_init(void);
__attribute__((constructor(101))) static void start(void) { __asan_init(); }
C
    cc -shared -fPIC -o runtime.so runtime.c -Wl,--whole-archive runtime.a -Wl,--no-whole-archive -lpthread -ldl -lm -lrt
) || exit 1
echo "== address sanitizer: python built in $((SECONDS - began)) s"

# Leaks are not looked for, as in sim/sanitize.sh. Python's own allocator would keep what is freed to itself.
sanitized() {
    (
        export PYTHONPATH=$out/python:$PWD/tests PYTHONMALLOC=malloc STORE_PROGRAM=$out/$host/release/pagelith
        export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1 exitcode=66 ${ASAN_OPTIONS:-}"
        cd "$out" && LD_PRELOAD=$out/python/runtime.so "$python" -W error "$@"
    )
}
# It has to find what is planted: a store that writes into memory that was freed.
planted=$(sanitized -m storm.planted 2>&1)
status=$?
if [ $status -ne 66 ] || [[ $planted != *heap-use-after-free* ]]; then
    printf '%s\n' "$planted" | head -n 20
    echo "== address sanitizer: python does not find what is planted (exit status $status)"
    exit 1
fi
began=$SECONDS
sanitized -m storm --operations "$operations" --seed "$seed"
status=$?
echo "== address sanitizer: python $([ $status -eq 0 ] && echo clean || echo FAILED), $((SECONDS - began)) s"
exit $status
