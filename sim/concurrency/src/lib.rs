//! Tests of concurrent use of one store, under schedulers that choose which thread runs: see
//! README.md. This crate contains only tests, which `sim/concurrency.sh` builds and runs.
