//! Reads: lookups, gets from every tier, views and pins.

pub(crate) mod absence;
pub(crate) mod disk_read;
pub(crate) mod exists;
pub(crate) mod exists_groups;
pub(crate) mod get;
pub(crate) mod item;
pub(crate) mod locate;
pub(crate) mod page_depth;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod promote;
pub(crate) mod recompute;
pub(crate) mod summary;
pub(crate) mod tail;
pub(crate) mod touch_hits;
pub(crate) mod view;
