//! The right that each request requires, and the fields in which a foreign namespace is detected.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::GetItem;

use super::*;

const OWN: NamespaceId = NamespaceId([1; 16]);
const FOREIGN: NamespaceId = NamespaceId([2; 16]);

fn key(namespace: NamespaceId) -> ObjectKey {
    ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", Shard::Whole)
        .expect("names")
}

fn own() -> Rights {
    Rights::of(Namespaces::Listed(BTreeSet::from([OWN])))
}

#[test]
fn foreign_namespace_among_a_parts_required_keys_is_refused() {
    let part = |required| {
        let mut put = PutBuilder::of_parts(32 << 10, &[key(OWN), key(required)]);
        put.group(None);
        put.object(key(OWN), 100, &[]);
        own().check(&RequestBody::Put(put.puts().expect("a put")))
    };
    assert_eq!(part(OWN), Ok(()));
    assert_eq!(part(FOREIGN), Err(AccessDenied { verb: Verb::PutParts, namespace: Some(FOREIGN) }));
}

#[test]
fn foreign_namespace_in_any_key_of_a_request_is_refused() {
    let refused = |ask: RequestBody<'_>| own().check(&ask).expect_err("foreign").namespace;
    let keys = [key(OWN), key(FOREIGN)];
    for ask in [
        RequestBody::Exists(List::of(&keys)),
        RequestBody::ExistsPrefix(List::of(&keys)),
        RequestBody::Remove(List::of(&keys)),
        RequestBody::Pin(1, List::of(&keys)),
        RequestBody::Lease(1, List::of(&keys)),
        RequestBody::Prefetch(List::of(&keys)),
        RequestBody::View(1, List::of(&keys)),
        RequestBody::Used(1, List::of(&keys)),
        RequestBody::Hint(1, List::of(&keys)),
        RequestBody::Begin(1, List::of(&keys)),
    ] {
        assert_eq!(refused(ask), Some(FOREIGN), "{:?}", ask.verb());
    }
    let gets = keys.map(|key| GetItem::new(key, None, 1));
    assert_eq!(refused(RequestBody::Get(List::of(&gets))), Some(FOREIGN));
    assert_eq!(refused(RequestBody::Clear(FOREIGN)), Some(FOREIGN));
    for (base, object) in [(None, FOREIGN), (Some(key(FOREIGN)), OWN)] {
        let mut put = PutBuilder::new(4096);
        put.group(base);
        put.object(key(object), 1, &[]);
        assert_eq!(
            refused(RequestBody::Put(put.puts().expect("a put"))),
            Some(FOREIGN),
            "{base:?}"
        );
    }
    assert_eq!(own().check(&RequestBody::Exists(List::of(&keys[..1]))), Ok(()));
    assert_eq!(own().check(&RequestBody::Clear(OWN)), Ok(()));
    assert_eq!(own().check(&RequestBody::Hold(1)), Ok(()));
    assert_eq!(Rights::all().check(&RequestBody::Exists(List::of(&keys))), Ok(()));
}

#[test]
fn request_without_its_right_is_refused_by_verb() {
    let readers = Rights { write: false, remove: false, ..own() };
    for ask in [
        RequestBody::Flush,
        RequestBody::Clear(OWN),
        RequestBody::Hold(1),
        RequestBody::Release(1),
        RequestBody::Stats,
    ] {
        let refused = readers.check(&ask).expect_err("no right");
        assert_eq!((refused.verb, refused.namespace), (ask.verb(), None));
    }
    assert_eq!(readers.check(&RequestBody::Ping), Ok(()));
    assert_eq!(readers.check(&RequestBody::Events(0)), Ok(()));
    assert_eq!(
        (readers.may_receive_events(OWN), readers.may_receive_events(FOREIGN)),
        (true, false)
    );
    let writers = Rights { read: false, ..own() };
    assert!(writers.check(&RequestBody::Events(0)).is_err() && !writers.may_receive_events(OWN));
    let text = own().check(&RequestBody::Clear(FOREIGN)).expect_err("foreign").to_string();
    assert_eq!(text, format!("not allowed on this connection: namespace={FOREIGN} verb=Clear"));
}

/// The right that a verb requires by the protocol, and whether it has a namespace. A second table,
/// written by hand, to compare with the code; its match covers every verb.
fn needed(verb: Verb) -> (Option<Right>, bool) {
    match verb {
        Verb::Exists => (Some(Right::Read), true),
        Verb::ExistsPrefix => (Some(Right::Read), true),
        Verb::Get => (Some(Right::Read), true),
        Verb::Put => (Some(Right::Write), true),
        Verb::PutAttached => (Some(Right::Write), true),
        Verb::PutParts => (Some(Right::Write), true),
        Verb::PutInto => (Some(Right::Write), true),
        Verb::Remove => (Some(Right::Remove), true),
        Verb::Clear => (Some(Right::Remove), true),
        Verb::Flush => (Some(Right::Write), false),
        Verb::Stats => (Some(Right::Operate), false),
        Verb::Ping => (None, false),
        Verb::Pin => (Some(Right::Read), true),
        Verb::Unpin => (Some(Right::Read), false),
        Verb::Lease => (Some(Right::Read), true),
        Verb::View => (Some(Right::Read), true),
        Verb::Prefetch => (Some(Right::Read), true),
        Verb::Used => (Some(Right::Read), true),
        Verb::Hint => (Some(Right::Read), true),
        Verb::Events => (Some(Right::Read), false),
        Verb::Begin => (Some(Right::Write), true),
        Verb::Commit => (Some(Right::Write), false),
        Verb::Abort => (Some(Right::Write), false),
        Verb::Missing => (Some(Right::Write), false),
        Verb::Hold => (Some(Right::Remove), false),
        Verb::Release => (Some(Right::Remove), false),
    }
}

/// The result of checking a request of this verb in one namespace.
fn checked(rights: &Rights, verb: Verb, namespace: NamespaceId) -> Result<(), AccessDenied> {
    let keys = [key(namespace)];
    let gets = keys.map(|key| GetItem::new(key, None, 1));
    let list = List::of(&keys);
    let put = |mut draft: PutBuilder, base| {
        draft.group(base);
        draft.object(keys[0], 1, &[]);
        rights.check(&RequestBody::Put(draft.puts().expect("a put")))
    };
    let ask = match verb {
        Verb::Put => return put(PutBuilder::new(4096), None),
        Verb::PutAttached => return put(PutBuilder::new(4096), Some(keys[0])),
        Verb::PutParts => return put(PutBuilder::of_parts(4096, &keys), None),
        Verb::PutInto => return put(PutBuilder::for_open_group(4096, 1), None),
        Verb::Exists => RequestBody::Exists(list),
        Verb::ExistsPrefix => RequestBody::ExistsPrefix(list),
        Verb::Get => RequestBody::Get(List::of(&gets)),
        Verb::Remove => RequestBody::Remove(list),
        Verb::Clear => RequestBody::Clear(namespace),
        Verb::Flush => RequestBody::Flush,
        Verb::Stats => RequestBody::Stats,
        Verb::Ping => RequestBody::Ping,
        Verb::Pin => RequestBody::Pin(1, list),
        Verb::Unpin => RequestBody::Unpin(1),
        Verb::Lease => RequestBody::Lease(1, list),
        Verb::View => RequestBody::View(1, list),
        Verb::Prefetch => RequestBody::Prefetch(list),
        Verb::Used => RequestBody::Used(1, list),
        Verb::Hint => RequestBody::Hint(1, list),
        Verb::Events => RequestBody::Events(0),
        Verb::Begin => RequestBody::Begin(1, list),
        Verb::Commit => RequestBody::Commit(1),
        Verb::Abort => RequestBody::Abort(1),
        Verb::Missing => RequestBody::Missing(1),
        Verb::Hold => RequestBody::Hold(1),
        Verb::Release => RequestBody::Release(1),
    };
    assert_eq!(ask.verb(), verb);
    rights.check(&ask)
}

/// Every verb, with each set of rights, in an allowed namespace and in a foreign one.
#[test]
fn each_verb_without_its_right_is_refused() {
    for verb in Verb::ALL.iter().copied() {
        let (needs, names) = needed(verb);
        for (set, namespace) in (0..16u8).flat_map(|set| [(set, OWN), (set, FOREIGN)]) {
            let has = |bit: u8| set & 1 << bit != 0;
            let (read, write, remove, operate) = (has(0), has(1), has(2), has(3));
            let rights = Rights { read, write, remove, operate, ..own() };
            let has_right = match needs {
                Some(Right::Read) => read,
                Some(Right::Write) => write,
                Some(Right::Remove) => remove,
                Some(Right::Operate) => operate,
                None => true,
            };
            let expected = match (has_right, names && namespace == FOREIGN) {
                (false, _) => Err(AccessDenied { verb, namespace: None }),
                (true, true) => Err(AccessDenied { verb, namespace: Some(FOREIGN) }),
                (true, false) => Ok(()),
            };
            assert_eq!(
                checked(&rights, verb, namespace),
                expected,
                "{verb:?} {rights:?} {namespace}"
            );
            let everywhere = Rights { namespaces: Namespaces::All, ..rights };
            assert_eq!(
                checked(&everywhere, verb, namespace).is_ok(),
                has_right,
                "{verb:?} {everywhere:?}"
            );
        }
    }
}
