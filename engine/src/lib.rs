//! Pagelith: an embedded, log-structured, tiered page store for LLM KV caches.
//!
//! ```
//! use pagelith::layouts::{ids::PrefixHash, key::{ObjectKey, Role}, namespace::Namespace, shard::Shard};
//! use pagelith::{Config, Facts, GetSlice, Options, PutSlice, Size, Store};
//!
//! let mut config = Config::default(); // DRAM only; set `ssd.bytes` and `ssd.dirs` to survive a restart
//! config.dram.bytes = Size::mib(8);
//! let store = Store::open(config.validate(&Facts::of_this_machine()?)?)?;
//!
//! let model = Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
//! let key = |part| ObjectKey::new(model, PrefixHash([7; 32]), Role::Target, "kv", part, Shard::Whole);
//! let (k, v) = (PutSlice { key: key("k")?, pieces: &[b"keys"] }, PutSlice { key: key("v")?, pieces: &[b"values"] });
//! store.put_groups(&[&[k, v]], Options::default())[0].clone()?; // both visible, or neither
//!
//! let mut page = [0u8; 6];
//! let get = GetSlice { key: key("v")?, range: None, pieces: &mut [&mut page] };
//! assert!(store.get_batch(&mut [get], Options::default())[0].as_ref().is_ok_and(|o| o.is_hit()));
//! assert_eq!(&page, b"values");
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The write path is `put.rs`, the read path `get.rs`. What is promised is in `docs/promises.md`.

pub mod attach;
mod batch;
mod busy;
mod checkpoint;
mod close;
pub mod config;
mod core;
mod damage;
mod error;
mod events;
mod exists;
mod fetch;
mod flush;
mod flush_counts;
mod flusher;
mod frame_io;
mod frames;
mod get;
mod groups;
mod headers;
mod health;
mod hits;
mod index;
pub mod key_file;
mod lanes;
mod leaving;
mod locate;
mod log_events;
mod open;
mod outcome;
mod pin;
mod pins;
mod plan;
mod pooled;
mod prefetch;
mod probe;
mod promote;
mod published;
mod put;
mod put_batch;
mod quarantine;
mod ragged;
mod readback;
mod reclaim;
mod recovery;
mod registered;
pub mod remote;
mod removals;
mod remove;
mod sampler;
mod scatter;
mod scratch;
mod scrub;
pub mod serve;
mod session;
mod shared;
mod slot;
mod slow;
mod stall;
mod stats;
#[cfg(test)]
mod stepped;
mod steps;
mod store;
mod summary;
mod tally;
mod together;
mod touched;
mod unsaved;
mod view;
mod visibility;
mod written_namespaces;

/// Parts of the store that benches measure by themselves. No promise holds here.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::index::{Entry, Index, IndexError, SsdPlace};
}

pub use batch::{Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, Request, Source};
pub use config::{Config, ConfigError, Facts, Size, ValidConfig};
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, Events};
pub use groups::{Group, GroupId};
pub use hits::{HitPolicy, PagesFound, PagesQuery, PoolQuery};
pub use open::OpenReport;
pub use outcome::{
    CloseReport, Done, FlushReport, GetDone, GetOutcome, MissCause, PutDone, PutOutcome, Ticket, Tier,
};
pub use pagelith_io as io;
pub use pagelith_io::buffer::AlignedBuf;
pub use pagelith_io::registered::Registration;
pub use pagelith_layouts as layouts;
pub use pagelith_transport as transport;
pub use pin::Pin;
pub use scrub::{ScrubOptions, ScrubReport};
pub use session::Session;
pub use stats::Stats;
pub use store::Store;
pub use view::View;

/// The example of the README is run as a test too.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
