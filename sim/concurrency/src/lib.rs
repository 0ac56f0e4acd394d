//! What threads of one store can do to each other, searched by schedulers that choose who runs: see README.md.
//! There is nothing in this crate but its tests, which `sim/concurrency.sh` builds and runs.
