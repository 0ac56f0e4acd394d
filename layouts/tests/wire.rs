//! The wire protocol: what is written reads back, every flipped bit of a head is seen, whatever the bytes are nothing
//! panics, and the recorded frames of the first version are read and written for as long as it is spoken.

#![expect(clippy::disallowed_methods, reason = "a test reads its golden files itself; nothing here ships")]

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

/// So many cases (`PROPTEST_CASES=25600` makes it a hundred times as many), and no file of failures: what a law
/// finds becomes a named test.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: cases * (default.cases / 256).max(1), failure_persistence: None, ..default }
}
