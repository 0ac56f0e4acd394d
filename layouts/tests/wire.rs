//! The wire protocol: encoded frames decode, every flipped bit of a header is detected, no bytes
//! cause a panic, and the recorded frames of version 1 are read and written as long as that version
//! is supported.

#![expect(
    clippy::disallowed_methods,
    reason = "a test reads its golden files itself; nothing here ships"
)]

mod common;

#[path = "wire/build.rs"]
mod build;
#[path = "wire/damage.rs"]
mod damage;
#[path = "wire/golden.rs"]
mod golden;
#[path = "wire/laws.rs"]
mod laws;

use proptest::prelude::ProptestConfig;

/// Configuration with `cases` cases (`PROPTEST_CASES=25600` makes it a hundred times as many).
/// Failures are not stored in a file: a failure that a property finds becomes a named test.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: cases * (default.cases / 256).max(1),
        failure_persistence: None,
        ..default
    }
}
