//! The keys of objects, the pages and groups that they form, and the objects removed with one.

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;

use super::oracle::NAMESPACES;
use crate::explore::objects;

pub(super) fn namespace(object: usize) -> NamespaceId {
    objects::namespace(object % NAMESPACES)
}

/// Objects of one page. Those of every third page are put as a group; of another third, the second
/// is attached to the first.
pub(super) const PAGE: usize = NAMESPACES * 2;

pub(super) fn key(object: usize) -> ObjectKey {
    let page = object / PAGE * NAMESPACES + object % NAMESPACES;
    let component = ["k", "v"][object / NAMESPACES % 2];
    ObjectKey::new(
        namespace(object),
        objects::page_hash(page),
        Role::Target,
        "kv",
        component,
        Shard::Whole,
    )
    .expect("a key")
}

/// The objects that are put together with an object.
pub(super) fn group(object: usize) -> Vec<usize> {
    let first = object / PAGE * PAGE + object % NAMESPACES;
    match object / PAGE % 3 {
        0 => vec![first, first + NAMESPACES],
        _ => vec![object],
    }
}

/// The base of an attached object.
pub(super) fn base(object: usize) -> Option<usize> {
    let first = object / PAGE * PAGE + object % NAMESPACES;
    (object / PAGE % 3 == 2 && object != first).then_some(first)
}

/// The objects that are removed with an object: its group, and objects attached to it.
pub(super) fn removed_with(object: usize) -> Vec<usize> {
    let attached = Some(object + NAMESPACES).filter(|other| base(*other) == Some(object));
    group(object).into_iter().chain(attached).collect()
}
