//! The rights of a peer: its namespaces, and the operations allowed in them. Granted when the peer
//! is authenticated, and checked at each request.

use std::collections::BTreeSet;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::wire::request::{RequestBody, Verb};

/// A set of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Every namespace.
    All,
    /// Only the listed namespaces.
    Listed(BTreeSet<NamespaceId>),
}

impl Namespaces {
    /// The listed namespaces; `None` for all.
    pub fn these(&self) -> Option<&BTreeSet<NamespaceId>> {
        match self {
            Namespaces::All => None,
            Namespaces::Listed(these) => Some(these),
        }
    }

    fn contains(&self, namespace: NamespaceId) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::Listed(these) => these.contains(&namespace),
        }
    }
}

/// The rights of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The namespaces in which the rights hold.
    pub namespaces: Namespaces,
    /// exists, get, pin, unpin, lease, hint, events.
    pub read: bool,
    /// put, flush; begin, commit and abort groups.
    pub write: bool,
    /// remove, clear; hold and release, whose effect ends with the connection.
    pub remove: bool,
    /// stats, which cover every namespace.
    pub operate: bool,
}

/// A single right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// See [`Rights::read`].
    Read,
    /// See [`Rights::write`].
    Write,
    /// See [`Rights::remove`].
    Remove,
    /// See [`Rights::operate`].
    Operate,
}

/// The right that a verb requires; `None` if every peer may use it.
fn right_of(verb: Verb) -> Option<Right> {
    match verb {
        Verb::Exists | Verb::ExistsPrefix | Verb::Get | Verb::Prefetch | Verb::Used => {
            Some(Right::Read)
        }
        Verb::Pin | Verb::Unpin | Verb::Lease | Verb::View | Verb::Events | Verb::Hint => {
            Some(Right::Read)
        }
        Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::Flush => Some(Right::Write),
        Verb::Begin | Verb::PutInto | Verb::Commit | Verb::Abort | Verb::Missing => {
            Some(Right::Write)
        }
        Verb::Remove | Verb::Clear | Verb::Hold | Verb::Release => Some(Right::Remove),
        Verb::Stats => Some(Right::Operate),
        Verb::Ping => None,
    }
}

/// A request for which the peer has no right. It does not reveal whether the requested object
/// exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not allowed on this connection: {}verb={verb:?}", namespace_field(.namespace))]
pub struct AccessDenied {
    /// The verb of the request.
    pub verb: Verb,
    /// The first forbidden namespace of the request; `None` if the verb itself is forbidden.
    pub namespace: Option<NamespaceId>,
}

fn namespace_field(id: &Option<NamespaceId>) -> String {
    id.map_or_else(String::new, |id| format!("namespace={id} "))
}

impl Rights {
    /// All rights in all namespaces.
    pub fn all() -> Rights {
        Rights::of(Namespaces::All)
    }

    /// All rights in these namespaces; `operate` only with [`Namespaces::All`].
    pub fn of(namespaces: Namespaces) -> Rights {
        let operate = namespaces == Namespaces::All;
        Rights { namespaces, read: true, write: true, remove: true, operate }
    }

    /// Whether the peer has this right.
    pub fn has(&self, right: Right) -> bool {
        match right {
            Right::Read => self.read,
            Right::Write => self.write,
            Right::Remove => self.remove,
            Right::Operate => self.operate,
        }
    }

    /// Whether the peer may receive the events of a namespace.
    pub fn may_receive_events(&self, namespace: NamespaceId) -> bool {
        self.read && self.namespaces.contains(namespace)
    }

    /// Check that all of `ask` is allowed. It checks every key: those of items, of bases, and of
    /// the required members of groups.
    pub fn check(&self, ask: &RequestBody<'_>) -> Result<(), AccessDenied> {
        let verb = ask.verb();
        let may = right_of(verb).is_none_or(|right| self.has(right));
        if !may {
            return Err(AccessDenied { verb, namespace: None });
        }
        let foreign =
            |namespace: NamespaceId| (!self.namespaces.contains(namespace)).then_some(namespace);
        let found = match ask {
            RequestBody::Exists(keys)
            | RequestBody::ExistsPrefix(keys)
            | RequestBody::Remove(keys)
            | RequestBody::Pin(_, keys)
            | RequestBody::Lease(_, keys)
            | RequestBody::Prefetch(keys)
            | RequestBody::View(_, keys)
            | RequestBody::Used(_, keys)
            | RequestBody::Hint(_, keys)
            | RequestBody::Begin(_, keys) => keys.iter().find_map(|key| foreign(key.namespace())),
            RequestBody::Get(items) => items.iter().find_map(|item| foreign(item.key.namespace())),
            RequestBody::Put(puts) => {
                let bases = (0..puts.group_count()).filter_map(|group| puts.base(group));
                let required = puts.required().into_iter().flat_map(|keys| keys.iter());
                let keys = puts.items().iter().map(|item| item.key).chain(bases).chain(required);
                keys.into_iter().find_map(|key| foreign(key.namespace()))
            }
            RequestBody::Clear(namespace) => foreign(*namespace),
            // Events are filtered by namespace when they are sent ([`Rights::may_receive_events`]).
            RequestBody::Flush
            | RequestBody::Stats
            | RequestBody::Ping
            | RequestBody::Events(_) => None,
            // Identifiers of state of the connection, which was checked when that state was
            // created.
            RequestBody::Unpin(_)
            | RequestBody::Commit(_)
            | RequestBody::Abort(_)
            | RequestBody::Missing(_) => None,
            // Not bound to a namespace: each removal has the same effect while it runs.
            RequestBody::Hold(_) | RequestBody::Release(_) => None,
        };
        found.map_or(Ok(()), |namespace| Err(AccessDenied { verb, namespace: Some(namespace) }))
    }
}

#[cfg(test)]
mod tests;
