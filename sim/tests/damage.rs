//! Damage at rest and devices that lie, one fault at a time and exhaustively, met by a store that is opened
//! afterwards or runs meanwhile. Nobody ever gets bytes that were not put under that key, or a part of a group; what
//! is lost is what was hit; the store opens and takes new things.
//!
//! `TEST_PAGELITH_SIM_DAMAGE=all` leaves out no bit and no place.

#[path = "damage/flips.rs"]
mod flips;
#[path = "damage/ledger.rs"]
mod ledger;
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
