//! What a peer may do: which namespaces, and what in them. Given when it is known, asked at every request.

use std::collections::BTreeSet;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::wire::request::{Ask, Verb};

/// Which namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Every one.
    All,
    /// These.
    These(BTreeSet<NamespaceId>),
}

impl Namespaces {
    /// Which, if not all.
    pub fn these(&self) -> Option<&BTreeSet<NamespaceId>> {
        match self {
            Namespaces::All => None,
            Namespaces::These(these) => Some(these),
        }
    }

    fn have(&self, namespace: NamespaceId) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::These(these) => these.contains(&namespace),
        }
    }
}

/// What a peer may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Where it may do it.
    pub namespaces: Namespaces,
    /// exists, get, pin, unpin, lease, events.
    pub read: bool,
    /// put, flush; begin, commit and abort groups.
    pub write: bool,
    /// remove, clear; hold and release, which end with the connection.
    pub remove: bool,
    /// stats, which tell about every namespace.
    pub operate: bool,
}

/// One of the rights.
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

/// The right that a verb needs; `None` for what everybody may ask.
fn right_of(verb: Verb) -> Option<Right> {
    match verb {
        Verb::Exists | Verb::ExistsPrefix | Verb::Get | Verb::Prefetch | Verb::Used => Some(Right::Read),
        Verb::Pin | Verb::Unpin | Verb::Lease | Verb::View | Verb::Events => Some(Right::Read),
        Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::Flush => Some(Right::Write),
        Verb::Begin | Verb::PutInto | Verb::Commit | Verb::Abort | Verb::Missing => Some(Right::Write),
        Verb::Remove | Verb::Clear | Verb::Hold | Verb::Release => Some(Right::Remove),
        Verb::Stats => Some(Right::Operate),
        Verb::Ping => None,
    }
}

/// A request that the peer has no right to; says nothing of whether what it asked about is here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not allowed on this connection: {}verb={verb:?}", where_it_is(.namespace))]
pub struct NotAllowed {
    /// What was asked.
    pub verb: Verb,
    /// The first namespace that it may not be asked in, if it is that.
    pub namespace: Option<NamespaceId>,
}

fn where_it_is(id: &Option<NamespaceId>) -> String {
    id.map_or_else(String::new, |id| format!("namespace={id} "))
}

impl Rights {
    /// Everything, everywhere.
    pub fn all() -> Rights {
        Rights::of(Namespaces::All)
    }

    /// Everything that a client does, in these namespaces; not `operate` unless they are all.
    pub fn of(namespaces: Namespaces) -> Rights {
        let operate = namespaces == Namespaces::All;
        Rights { namespaces, read: true, write: true, remove: true, operate }
    }

    /// Whether it has this one.
    pub fn has(&self, right: Right) -> bool {
        match right {
            Right::Read => self.read,
            Right::Write => self.write,
            Right::Remove => self.remove,
            Right::Operate => self.operate,
        }
    }

    /// Whether it may be told what comes and goes in a namespace.
    pub fn may_hear(&self, namespace: NamespaceId) -> bool {
        self.read && self.namespaces.have(namespace)
    }

    /// Whether all of `ask` is allowed. Every key is looked at, and the keys of bases and of what groups consist of.
    pub fn check(&self, ask: &Ask<'_>) -> Result<(), NotAllowed> {
        let verb = ask.verb();
        let may = right_of(verb).is_none_or(|right| self.has(right));
        if !may {
            return Err(NotAllowed { verb, namespace: None });
        }
        let foreign = |namespace: NamespaceId| (!self.namespaces.have(namespace)).then_some(namespace);
        let found = match ask {
            Ask::Exists(keys)
            | Ask::ExistsPrefix(keys)
            | Ask::Remove(keys)
            | Ask::Pin(_, keys)
            | Ask::Lease(_, keys)
            | Ask::Prefetch(keys)
            | Ask::View(_, keys)
            | Ask::Used(_, keys)
            | Ask::Begin(_, keys) => keys.iter().find_map(|key| foreign(key.namespace())),
            Ask::Get(items) => items.iter().find_map(|item| foreign(item.key.namespace())),
            Ask::Put(puts) => {
                let bases = (0..puts.group_count()).filter_map(|group| puts.base(group));
                let required = puts.required().into_iter().flat_map(|keys| keys.iter());
                let keys = puts.items().iter().map(|item| item.key).chain(bases).chain(required);
                keys.into_iter().find_map(|key| foreign(key.namespace()))
            }
            Ask::Clear(namespace) => foreign(*namespace),
            // Of events it is told those of its namespaces ([`Rights::may_hear`]).
            Ask::Flush | Ask::Stats | Ask::Ping | Ask::Events(_) => None,
            // Names of what the connection holds: it had the right to what they name.
            Ask::Unpin(_) | Ask::Commit(_) | Ask::Abort(_) | Ask::Missing(_) => None,
            // A removal anywhere does the same while it lasts.
            Ask::Hold(_) | Ask::Release(_) => None,
        };
        found.map_or(Ok(()), |namespace| Err(NotAllowed { verb, namespace: Some(namespace) }))
    }
}

#[cfg(test)]
mod tests;
