//! The client side of Pagelith: the types of its calls, and a store in another process.
//!
//! This crate links neither tiers nor index. A process without a store of its own needs no other
//! crate of Pagelith than this one and those that it depends on. The crate `pagelith`, with the
//! embedded `Store`, exports all that is public here under the same names.
//!
//! The modules `api` and `rpc`, and hidden members of public types, are for the crate `pagelith`
//! only: they may change at any time.

#[doc(hidden)]
pub mod api;
pub mod client;
#[doc(hidden)]
pub mod rpc;

pub use api::batch_queue::{BatchCompletion, BatchQueue};
pub use api::device::pieces::{DeviceGet, DeviceGroup, DevicePut};
pub use api::error::{Error, ErrorKind, Result};
pub use api::events::{Event, Events};
pub use api::hint::{Hint, Priority};
pub use api::hits::{HitPolicy, PagesFound, PagesQuery, PoolQuery};
pub use api::outcome::{
    CloseReport, CompletedBatch, CompletedGet, CompletedPut, FlushReport, GetOutcome, MissCause,
    PutOutcome, Ticket, Tier,
};
pub use api::page_store::{PageGroup, PagePin, PageSession, PageStore, PageView};
pub use api::request::{
    Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, RequestEpoch, Source,
};
pub use rpc::Peer;
