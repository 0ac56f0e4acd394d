//! Types of the public API without state: requests, outcomes, errors, hit rules, events.

pub(crate) mod borrowed;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod group_info;
pub(crate) mod hits;
pub(crate) mod outcome;
pub(crate) mod request;
