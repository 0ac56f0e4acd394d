#!/usr/bin/env bash
# Runs the tests with real threads, real memory and a real ring under a sanitizer. Needs a nightly
# toolchain, and rust-src to instrument std too (rustup component add rust-src --toolchain nightly).
# Without it ThreadSanitizer does not observe std's locks, and reports what they hand over: see
# sim/concurrency/README.md. Builds into target/thread and target/address. Exits with an
# error if the sanitizer found something.
#
#   sim/sanitize.sh thread|address [NAME...]   NAME: layouts io tiers transport client engine (default: all)
set -uo pipefail
cd "$(dirname "$0")/.."

sanitizer=${1:-}
[ $# -gt 0 ] && shift
fakes=() without_fakes=()
case $sanitizer in
thread)
    # A race is an access before the lock or release that orders it: it is reported and is an error.
    export TSAN_OPTIONS="halt_on_error=0 exitcode=66 suppressions=$PWD/sim/concurrency/tsan.supp ${TSAN_OPTIONS:-}"
    flags="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg pagelith_tsan"
    # The behaviour tests over the fake libraries.
    without_fakes=(--skip rdma:: --skip shown::)
    ;;
address)
    # No leak detection: memory that the kernel still writes into is leaked on purpose.
    export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1 ${ASAN_OPTIONS:-}"
    # The fake libraries are loaded at run time, and take the sanitizer from the program.
    flags="-Zsanitizer=address -Clink-arg=-rdynamic"
    # ThreadSanitizer does not see the locks of those libraries: they are of their own copies of std.
    fakes=(--test verbs --test devices)
    ;;
*)
    echo "usage: $0 thread|address [layouts|io|tiers|transport|client|engine...]" >&2
    exit 2
    ;;
esac
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "== $sanitizer sanitizer: skipped, no nightly toolchain"
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
std=()
[ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ] || std=(-Zbuild-std)
# With an explicit target, build scripts and macros are built without the sanitizer.
export RUSTFLAGS="$flags" CARGO_BUILD_TARGET=$host CARGO_TARGET_DIR=$PWD/target/$sanitizer
failed=()

tests() {
    local name=$1 began=$SECONDS status
    shift
    cargo +nightly test -q "${std[@]}" "$@"
    status=$?
    [ "$status" -eq 0 ] || failed+=("$name")
    echo "== $sanitizer sanitizer: $name $([ "$status" -eq 0 ] && echo clean || echo FAILED), $((SECONDS - began)) s with its build"
}
wanted() {
    local name=$1
    shift
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]
}

wanted layouts "$@" && tests layouts -p pagelith-layouts --lib
wanted io "$@" && tests io -p pagelith-io --lib --test queue_behaviour --test disk_behaviour "${fakes[@]}"
wanted tiers "$@" && tests tiers -p pagelith-tiers --lib
# Links over the fake verbs library, which ThreadSanitizer does not see through.
[ "$sanitizer" = address ] && wanted transport "$@" && tests transport -p pagelith-transport --test rdma --test rdma_host --test rdma_use
wanted client "$@" && tests client -p pagelith-client --lib
# Every behaviour test on every backend, but without the constant fingerprint: it finds the same
# races, slowly.
wanted engine "$@" && tests engine -p pagelith --lib --test behaviour -- --skip sim --skip constant --skip object_of_75_mb_round_trips "${without_fakes[@]}"
echo "== $sanitizer sanitizer: skipped: tests that kill or abort processes on purpose (kill_*, reopen_after_kill," \
    "seccomp), configuration, resharding, cli, and single-threaded tests on the simulated disk (sim)"
if [ ${#failed[@]} -gt 0 ]; then
    echo "== $sanitizer sanitizer: FOUND errors in: ${failed[*]}"
    exit 1
fi
