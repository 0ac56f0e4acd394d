//! Pagelith: an embedded, log-structured, tiered page store for LLM KV caches.
//!
//! ```
//! use pagelith::layouts::{ids::PrefixHash, key::{ObjectKey, Role}, namespace::Namespace, shard::Shard};
//! use pagelith::{Options, PageStore, Store};
//!
//! let store = Store::builder().dram("8MiB").open()?; // add `.ssd("/nvme0", "1TiB")` to survive a restart
//!
//! let model = Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
//! // An object is one tensor of one page: of the target or draft model, whole or of one rank.
//! let key = |component| ObjectKey::new(model, PrefixHash([7; 32]), Role::Target, "kv", component, Shard::Whole);
//! let page = [(key("k")?, &b"keys"[..]), (key("v")?, &b"values"[..])];
//! store.put_page(&page, Options::default())?; // both visible, or neither
//!
//! let mut values = [0; 6];
//! assert!(store.get_one(key("v")?, &mut values, Options::default())?.is_hit());
//! assert_eq!(&values, b"values");
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The write path begins in `write/put.rs`, the read path in `read/get.rs`. The store's promises
//! are in `docs/promises.md`.

mod background;
pub mod config;
mod memory;
mod read;
pub mod server;
mod state;
mod store;
mod write;

/// The stores of peers.
pub mod rpc {
    pub use pagelith_client::rpc::Peer;
    pub(crate) use pagelith_client::rpc::*;
}

/// Parts of the store that benches measure separately. They may change at any time.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::memory::index::{Entry, Index, IndexError, SsdLocation};
}

pub use background::scrub::{ScrubOptions, ScrubReport};
pub use config::{Config, ConfigError, MachineLimits, Size, ValidConfig};
pub(crate) use pagelith_client::api;
pub use pagelith_client::client;
pub use pagelith_client::{
    BatchCompletion, BatchQueue, CloseReport, CompletedBatch, CompletedGet, CompletedPut,
    Destination, DeviceGet, DeviceGroup, DevicePut, Error, ErrorKind, Event, Events, FlushReport,
    Get, GetOutcome, GetSlice, Hint, HitPolicy, MissCause, Options, PageGroup, PagePin,
    PageSession, PageStore, PageView, PagesFound, PagesQuery, PoolQuery, Priority, Put, PutGroup,
    PutOutcome, PutSlice, RequestEpoch, Result, Source, Ticket, Tier,
};
pub use pagelith_io as io;
pub use pagelith_io::buffer::AlignedBuf;
pub use pagelith_io::device::{
    CallerStream, Device, DeviceError, DeviceHandle, DeviceRange, Driver, DriverKind,
};
pub use pagelith_layouts as layouts;
pub use pagelith_transport as transport;
pub use read::pin::Pin;
pub use read::view::View;
pub use state::stats::{LimitStats, NamespaceStats, Stats};
pub use store::builder::StoreBuilder;
pub use store::embedded::Store;
pub use store::group::Group;
pub use store::key_file;
pub use store::open::OpenReport;
pub use store::rdma;
pub use store::registered_memory::Registration;
pub use store::session::Session;
pub use write::open_group::OpenGroupId;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
