//! Types of the public API without state: requests, outcomes, errors, hit rules, events.

pub mod borrowed;
pub mod error;
pub mod events;
pub mod group_info;
pub mod hint;
pub mod hits;
pub mod outcome;
pub mod request;
