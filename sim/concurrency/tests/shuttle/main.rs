//! A real store, with its flusher as one of the threads, under shuttle's schedulers. Run by
//! `sim/concurrency.sh`.
#![cfg(shuttle)]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "prints the duration of the search and its findings"
)]
#![allow(
    clippy::field_reassign_with_default,
    reason = "as the other tests make their configurations"
)]

mod env;
mod explore;
mod helpers;
mod history;

mod eviction;
mod groups;
mod reclaim;
mod removal;
mod shutdown;
mod staging;
