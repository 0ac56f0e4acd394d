//! A real store, its flusher among its threads, under shuttle's schedulers. Run by `sim/concurrency.sh`.
#![cfg(shuttle)]

mod explore;
mod history;
mod kit;
mod world;

mod eviction;
mod groups;
mod leaving;
mod reclaim;
mod removal;
mod staging;
