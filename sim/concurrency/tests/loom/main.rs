//! The small kernels under loom, every order of their steps. Run by `sim/concurrency.sh`.
#![cfg(loom)]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "prints the duration of the search"
)]
#![allow(
    clippy::field_reassign_with_default,
    reason = "as the other tests make their configurations"
)]

mod flusher;
mod guarded_table;
mod segment;
mod seqlock;
mod staging;
mod store;

/// Runs every order with at most `preemptions` preemptions; `None` is all of them.
pub fn every_order(
    name: &str,
    preemptions: Option<usize>,
    body: impl Fn() + Sync + Send + 'static,
) {
    static PATHS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = PATHS.lock();
    let paths = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = paths.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    let began = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        body();
    });
    let bound = preemptions.map_or("none".to_owned(), |n| n.to_string());
    let seconds = began.elapsed().as_secs_f64();
    let orders = paths.load(std::sync::atomic::Ordering::Relaxed);
    println!("loom kernel={name} orders={orders} preemptions_max={bound} seconds={seconds:.1}");
}
