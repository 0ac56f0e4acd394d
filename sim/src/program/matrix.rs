//! The fault matrix: for each row the faults of the simulated disk and the tests that cover it, in
//! addition to the seeds and the lanes over the real kernel.

/// A row.
pub struct Row {
    /// Its number.
    pub number: u32,
    /// The fault.
    pub fault: &'static str,
    /// Faults of the simulated disk.
    pub kinds: &'static [&'static str],
    /// Tests for this row.
    pub tests: &'static str,
}

const fn row(
    number: u32,
    fault: &'static str,
    kinds: &'static [&'static str],
    tests: &'static str,
) -> Row {
    Row { number, fault, kinds, tests }
}

/// All rows.
pub const ROWS: [Row; 30] = [
    row(1, "torn write", &["torn_write"], "`sim/tests/damage/torn.rs`"),
    row(2, "lost write after ack", &["lost_write"], "`engine/tests/suite/damage.rs`"),
    row(
        3,
        "misdirected write or read",
        &["misdirected_write", "misdirected_read", "stale_read"],
        "`sim/tests/damage/misdirected.rs`",
    ),
    row(
        4,
        "bit flip at rest",
        &["bit_flip_at_rest"],
        "`layouts/tests/flips.rs`, `sim/tests/damage/flips.rs`",
    ),
    row(5, "bit flip in memory or in flight", &["bit_flip_read"], ""),
    row(
        6,
        "checksum equal by chance",
        &[],
        "a bound, not a test: 2^-64 and less ([format.md](format.md))",
    ),
    row(
        7,
        "short read, short write",
        &["short_read", "short_write"],
        "`io/tests/queue_behaviour.rs`",
    ),
    row(8, "EIO on read", &["read_error", "bad_block"], "`sim/tests/faults.rs`"),
    row(9, "EIO on write", &["write_error"], "`sim/tests/faults.rs`"),
    row(10, "slow disk, stuck operation", &["slow", "stuck"], "`engine/tests/suite/deadlines.rs`"),
    row(11, "ENOSPC", &["no_space"], "`engine/tests/full_and_readonly.rs`"),
    row(
        12,
        "kill -9 at any point",
        &[],
        "`sim/tests/crash_points.rs`, `engine/tests/reopen_after_kill.rs`, and the crashes of the seeds",
    ),
    row(
        13,
        "power cut",
        &[],
        "`sim/tests/crash_points.rs`, `sim/tests/lying_disk.rs`, and the crashes of the seeds",
    ),
    row(14, "sync fails", &["sync_error"], "`sim/tests/faults.rs`"),
    row(
        15,
        "partial batch, same key twice",
        &[],
        "`engine/tests/suite/first_writer.rs`, `engine/tests/large_batches.rs`",
    ),
    row(16, "late remote completions", &[], "`pagelith-sim links`, `sim/tests/links.rs`"),
    row(
        17,
        "peer dies in a read",
        &[],
        "`pagelith-sim links`, `sim/tests/links.rs`, `cli/tests/network_partitions.rs`",
    ),
    row(
        18,
        "partition, slow peer",
        &[],
        "`pagelith-sim links`, `sim/tests/links.rs`, `cli/tests/network_partitions.rs`",
    ),
    row(
        19,
        "stale key of a region",
        &[],
        "regions have no keys; bytes passed by reference after their release: `pagelith-sim links`, `engine/src/server/shared_memory_test.rs`",
    ),
    row(
        20,
        "memory runs out",
        &[],
        "`engine/tests/suite/backpressure.rs`, `engine/tests/suite/staging.rs`; not each allocation in turn",
    ),
    row(
        21,
        "O_DIRECT or io_uring refused",
        &[],
        "`engine/tests/seccomp.rs`, `io/tests/backend_choice.rs`",
    ),
    row(
        22,
        "configuration that makes no sense",
        &[],
        "`engine/tests/config_refused.rs`, the fuzz target `config`",
    ),
    row(
        23,
        "manifest, checkpoint, header or footer corrupted",
        &[],
        "`layouts/tests/flips.rs`, `sim/tests/damage/flips.rs`, `cli/tests/verify_repair.rs`, the fuzz target `store_open`",
    ),
    row(
        24,
        "version skew, page shape changed",
        &[],
        "`layouts/tests/golden.rs`; not between peers of two versions",
    ),
    row(25, "clock jump", &[], "the clock steps of the seeds"),
    row(
        26,
        "hostile client bytes",
        &[],
        "`transport/tests/shared_memory.rs`, the fuzz targets `server`, `wire_decode` and `rings`",
    ),
    row(
        27,
        "hash collision, equal keys",
        &[],
        "seeds with `--constant-fingerprint`, `engine/tests/behaviour.rs` with one fingerprint",
    ),
    row(
        28,
        "object above staging, segment, frame; zero length",
        &[],
        "`engine/tests/refusals.rs`, `engine/tests/suite/staging.rs`",
    ),
    row(
        29,
        "reclaim or eviction races a read",
        &[],
        "`sim/concurrency`, `sim/tests/pins_and_clears.rs`",
    ),
    row(
        30,
        "client's buffer freed or changed",
        &[],
        "the guards and resting destinations of the seeds",
    ),
];
