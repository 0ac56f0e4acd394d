//! Links over a pipe in memory: the behaviour of every byte-stream link, for streams cut at any
//! byte.

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
