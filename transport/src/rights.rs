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

    /// Whether it may be told what comes and goes in a namespace.
    pub fn may_hear(&self, namespace: NamespaceId) -> bool {
        self.read && self.namespaces.have(namespace)
    }

    /// Whether all of `ask` is allowed. Every key is looked at, and the keys of bases and of what groups consist of.
    pub fn check(&self, ask: &Ask<'_>) -> Result<(), NotAllowed> {
        let verb = ask.verb();
        let may = match verb {
            Verb::Exists | Verb::ExistsPrefix | Verb::Get => self.read,
            Verb::Pin
            | Verb::Unpin
            | Verb::Lease
            | Verb::Events
            | Verb::Prefetch
            | Verb::View
            | Verb::Used => self.read,
            Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::Flush => self.write,
            Verb::Begin | Verb::PutInto | Verb::Commit | Verb::Abort | Verb::Missing => self.write,
            Verb::Remove | Verb::Clear | Verb::Hold | Verb::Release => self.remove,
            Verb::Stats => self.operate,
            Verb::Ping => true,
        };
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
mod tests {
    use pagelith_layouts::ids::PrefixHash;
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;
    use pagelith_layouts::wire::List;
    use pagelith_layouts::wire::put::PutDraft;
    use pagelith_layouts::wire::request::GetItem;

    use super::*;

    const OWN: NamespaceId = NamespaceId([1; 16]);
    const FOREIGN: NamespaceId = NamespaceId([2; 16]);

    fn key(namespace: NamespaceId) -> ObjectKey {
        ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", Shard::Whole).expect("names")
    }

    fn own() -> Rights {
        Rights::of(Namespaces::These(BTreeSet::from([OWN])))
    }

    #[test]
    fn what_a_part_says_of_its_group_is_looked_at_too() {
        let part = |required| {
            let mut put = PutDraft::of_parts(32 << 10, &[key(OWN), key(required)]);
            put.group(None);
            put.object(key(OWN), 100, &[]);
            own().check(&Ask::Put(put.puts().expect("a put")))
        };
        assert_eq!(part(OWN), Ok(()));
        assert_eq!(part(FOREIGN), Err(NotAllowed { verb: Verb::PutParts, namespace: Some(FOREIGN) }));
    }

    #[test]
    fn a_foreign_namespace_is_seen_in_every_place_of_every_verb() {
        let refused = |ask: Ask<'_>| own().check(&ask).expect_err("foreign").namespace;
        let keys = [key(OWN), key(FOREIGN)];
        for ask in [
            Ask::Exists(List::of(&keys)),
            Ask::ExistsPrefix(List::of(&keys)),
            Ask::Remove(List::of(&keys)),
            Ask::Pin(1, List::of(&keys)),
            Ask::Lease(1, List::of(&keys)),
            Ask::Prefetch(List::of(&keys)),
            Ask::View(1, List::of(&keys)),
            Ask::Used(1, List::of(&keys)),
            Ask::Begin(1, List::of(&keys)),
        ] {
            assert_eq!(refused(ask), Some(FOREIGN), "{:?}", ask.verb());
        }
        let gets = keys.map(|key| GetItem::new(key, None, 1));
        assert_eq!(refused(Ask::Get(List::of(&gets))), Some(FOREIGN));
        assert_eq!(refused(Ask::Clear(FOREIGN)), Some(FOREIGN));
        for (base, object) in [(None, FOREIGN), (Some(key(FOREIGN)), OWN)] {
            let mut put = PutDraft::new(4096);
            put.group(base);
            put.object(key(object), 1, &[]);
            assert_eq!(refused(Ask::Put(put.puts().expect("a put"))), Some(FOREIGN), "{base:?}");
        }
        assert_eq!(own().check(&Ask::Exists(List::of(&keys[..1]))), Ok(()));
        assert_eq!(own().check(&Ask::Clear(OWN)), Ok(()));
        assert_eq!(own().check(&Ask::Hold(1)), Ok(()));
        assert_eq!(Rights::all().check(&Ask::Exists(List::of(&keys))), Ok(()));
    }

    #[test]
    fn a_right_that_is_missing_is_refused_by_verb() {
        let readers = Rights { write: false, remove: false, ..own() };
        for ask in [Ask::Flush, Ask::Clear(OWN), Ask::Hold(1), Ask::Release(1), Ask::Stats] {
            let refused = readers.check(&ask).expect_err("no right");
            assert_eq!((refused.verb, refused.namespace), (ask.verb(), None));
        }
        assert_eq!(readers.check(&Ask::Ping), Ok(()));
        assert_eq!(readers.check(&Ask::Events(0)), Ok(()));
        assert_eq!((readers.may_hear(OWN), readers.may_hear(FOREIGN)), (true, false));
        let writers = Rights { read: false, ..own() };
        assert!(writers.check(&Ask::Events(0)).is_err() && !writers.may_hear(OWN));
        let text = own().check(&Ask::Clear(FOREIGN)).expect_err("foreign").to_string();
        assert_eq!(text, format!("not allowed on this connection: namespace={FOREIGN} verb=Clear"));
    }
}
