//! Page geometry against a slow tensor model that indexes every element, the sizes of the clients' own tables, and
//! what is refused.

#[path = "geometry/doc.rs"]
mod doc;
#[path = "geometry/extents.rs"]
mod extents;
#[path = "geometry/pointers.rs"]
mod pointers;
#[path = "geometry/random.rs"]
mod random;
#[path = "geometry/refused.rs"]
mod refused;
#[path = "geometry/reshard.rs"]
mod reshard;
#[path = "geometry/sizes.rs"]
mod sizes;
#[path = "geometry/slow.rs"]
mod slow;

use proptest::prelude::ProptestConfig;

/// So many cases (`PROPTEST_CASES=25600` makes it a hundred times as many), and no file of failures: what a law
/// finds becomes a named test.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: cases * (default.cases / 256).max(1), failure_persistence: None, ..default }
}
