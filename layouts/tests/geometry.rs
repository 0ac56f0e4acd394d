//! Page geometry compared with a slow tensor model that visits every element, with the sizes in the
//! clients' own tables, and refused descriptions.

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
#[path = "geometry/tensor_model.rs"]
mod tensor_model;

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
