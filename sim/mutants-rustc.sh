#!/bin/sh
# Cargo's RUSTC_WORKSPACE_WRAPPER for sim/mutants.sh: compiles the workspace's crates with the planted bugs. Dependencies
# are compiled as in every other build.
rustc=$1
shift
exec "$rustc" "$@" --cfg pagelith_mutants
