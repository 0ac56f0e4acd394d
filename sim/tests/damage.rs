//! Damage at rest and lying devices, one fault at a time and exhaustively, seen by a store that is
//! opened afterwards or runs meanwhile. No get returns bytes that were not put under its key, or
//! part of a group. Only objects at the damaged place are lost. The store opens and accepts new
//! objects.
//!
//! `TEST_PAGELITH_SIM_DAMAGE=all` skips no bit and no place.

#[path = "damage/expected.rs"]
mod expected;
#[path = "damage/flips.rs"]
mod flips;
#[path = "damage/misdirected.rs"]
mod misdirected;
#[path = "damage/report.rs"]
mod report;
#[path = "damage/scene.rs"]
mod scene;
#[path = "damage/struck.rs"]
mod struck;
#[path = "damage/torn.rs"]
mod torn;
