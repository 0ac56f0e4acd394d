#!/bin/sh
# Cargo's RUSTC_WORKSPACE_WRAPPER for sim/mutants.sh: the compiler, with planted bugs in the workspace's own crates. What they
# depend on is what any other build has.
rustc=$1
shift
exec "$rustc" "$@" --cfg pagelith_mutants
