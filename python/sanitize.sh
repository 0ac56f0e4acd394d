#!/usr/bin/env bash
# A randomized stress run (python/tests/storm) of the Python module and a store process that are
# built with AddressSanitizer: 100,000 operations, while memory is dropped, tasks are cancelled and
# signals are raised. Fails if anything is found.
#
#   python/sanitize.sh [OPERATIONS [SEED]]
#
# Needs a nightly toolchain, a C compiler with `ar`, and Python 3.10 or later; no package index. The
# installed Python is not instrumented: the toolchain's runtime is preloaded before all other
# libraries, so that the sanitizer manages all memory of the process, Python's included. Rust's std
# is not instrumented, and writes by the kernel are not seen: the stress run checks memory for those
# itself. Builds into target/address.
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
# The interpreter itself: the command may be a script.
python=$(python3 -c 'import sys; assert sys.version_info >= (3, 10); print(sys.executable)' 2>/dev/null) || skip "there is no python3 from 3.10 on"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
runtime=$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.asan.a
[ -f "$runtime" ] || skip "the nightly toolchain has no AddressSanitizer for $host"

out=$PWD/../target/address
mkdir -p "$out/python"
build() {
    # With an explicit target, build scripts and macros are built without the sanitizer. Debug
    # assertions are on, as in tests.
    RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" CARGO_BUILD_TARGET=$host CARGO_TARGET_DIR=$out \
        CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true cargo +nightly build --quiet --release --locked "$@"
}
began=$SECONDS
build && (cd .. && build -p pagelith-cli) || exit 1
rm -rf "$out/python/pagelith"
cp -r pagelith "$out/python/pagelith"
cp "$out/$host/release/lib_native.so" "$out/python/pagelith/_native.abi3.so"

# The runtime is shipped as an archive for executables; link it as a library. The one object that a
# library cannot contain starts the runtime, which `start` does instead.
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

# Leak detection is off, as in sim/sanitize.sh. Python's own allocator would not return freed memory
# to the sanitizer.
sanitized() {
    (
        export PYTHONPATH=$out/python:$PWD/tests PYTHONMALLOC=malloc STORE_PROGRAM=$out/$host/release/pagelith
        export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1 exitcode=66 ${ASAN_OPTIONS:-}"
        cd "$out" && LD_PRELOAD=$out/python/runtime.so "$python" -W error "$@"
    )
}
# The sanitizer must find a planted bug: a store that writes into freed memory.
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
