//! Links over a pipe in memory: what every byte-stream link keeps to, at every way in which a stream can be cut.

mod common;

#[path = "links/bounds.rs"]
mod bounds;
#[path = "links/ends.rs"]
mod ends;
#[path = "links/hostile.rs"]
mod hostile;
#[path = "links/recorded.rs"]
mod recorded;
#[path = "links/retract.rs"]
mod retract;
#[path = "links/roundtrip.rs"]
mod roundtrip;
