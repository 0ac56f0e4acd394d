//! The public API of every store: its interface, and types without state: requests, outcomes,
//! errors, hit rules, events.

pub mod batch_queue;
pub mod borrowed;
pub mod device;
pub mod error;
pub mod events;
pub mod group_info;
pub mod hint;
pub mod hits;
pub mod outcome;
pub mod page_store;
pub mod request;
