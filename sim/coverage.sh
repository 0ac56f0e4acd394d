#!/usr/bin/env bash
# Measures which lines of engine/src and tiers/src the explorer's seeds execute, without the unit
# tests.
#
#   sim/coverage.sh [SEEDS] [OPS] [DIR]
#
# Default: 40 seeds of 5000 operations, outputs in target/coverage.
#
# Needs rustup's llvm-tools (`rustup component add llvm-tools`); without them it prints that it is
# skipped and succeeds. Fails below 85 %.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-40} ops=${2:-5000} out=${3:-target/coverage}

tools=$(dirname "$(find "$(rustc --print sysroot)" -name llvm-profdata -print -quit 2>/dev/null || true)")
if [ ! -x "$tools/llvm-profdata" ] || [ ! -x "$tools/llvm-cov" ]; then
    echo "coverage: skipped, rustup's llvm-tools are not installed (rustup component add llvm-tools)"
    exit 0
fi

mkdir -p "$out"
rm -f "$out"/*.profraw
RUSTFLAGS="-C instrument-coverage" cargo build --release -p pagelith-sim --bin pagelith-sim --target-dir "$out/build"
program=$out/build/release/pagelith-sim
# Findings do not fail the measurement, but they are reported.
LLVM_PROFILE_FILE="$PWD/$out/%p.profraw" "$program" run --seeds "0..$seeds" --ops "$ops" --shrink 0 ||
    echo "coverage: the explorer reported findings"
LLVM_PROFILE_FILE="$PWD/$out/%p.profraw" "$program" run --seeds "0..$((seeds / 8 + 1))" --ops "$ops" \
    --constant-fingerprint --shrink 0 >/dev/null || echo "coverage: the explorer reported findings"
"$tools/llvm-profdata" merge -sparse "$out"/*.profraw -o "$out/all.profdata"
"$tools/llvm-cov" export "$program" -instr-profile="$out/all.profdata" -format=lcov engine/src tiers/src >"$out/lcov.info"

# Lines of a file up to its module of unit tests, and the number of them that ran.
awk '
    /^SF:/ {
        file = substr($0, 4); sub(/^.*\/(engine|tiers)\/src\//, "&", file)
        sub(/^.*\/engine\/src\//, "engine/src/", file); sub(/^.*\/tiers\/src\//, "tiers/src/", file)
        skip = file ~ /(\/tests\.rs|_test\.rs|\/tests\/)/; end = 1000000; at = 0
        while ((getline line < file) > 0) {
            at++
            if (line ~ /^#\[cfg\(test\)\]/) mark = at
            if (mark == at - 1 && line ~ /^mod [a-z_]+ \{/) { end = at; break }
        }
        close(file); mark = -2
    }
    /^DA:/ && !skip {
        split(substr($0, 4), d, ","); if (d[1] >= end) next
        lines[file]++; all++; if (d[2] > 0) { ran[file]++; hit++ }
    }
    END {
        for (f in lines) printf "%6.1f %% %4d of %4d %s\n", 100 * ran[f] / lines[f], ran[f], lines[f], f | "sort -n"
        close("sort -n")
        printf "coverage: %.1f %% of %d lines of engine/src and tiers/src\n", 100 * hit / all, all
        exit(hit < 0.85 * all)
    }
' "$out/lcov.info"
