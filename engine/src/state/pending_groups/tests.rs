use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Shard;

use super::*;
use crate::config::{Config, MachineLimits};
use crate::store::embedded::Store;

const NAMESPACE: NamespaceId = NamespaceId([3; 16]);
const FAR: Mono = Mono(u64::MAX / 2);

fn store() -> Store {
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(1);
    config.index.max_objects = Some(100);
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"))
        .expect("opened")
}

fn key(n: u64, part: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    let key = ObjectKey::new(
        NAMESPACE,
        PrefixHash(hash),
        Role::Target,
        "kv",
        &format!("c{part}"),
        Shard::Whole,
    );
    key.expect("a key")
}

fn at() -> Recency {
    Recency { request: 0, depth: 0 }
}

fn begin(core: &mut Core, required: &[ObjectKey], deadline: Mono, over_link: bool) -> Result<u64> {
    core.pending_groups
        .join(required, Generation::FIRST, at(), deadline, over_link)
        .map(|(id, _)| id)
}

/// Begins groups up to the limit and ends them, twice in each way: the full limit is free again.
#[test]
fn ended_group_frees_its_share_of_required_limit() {
    let groups: Vec<Vec<ObjectKey>> =
        (0..64).map(|n| (0..REQUIRED_MAX / 64).map(|part| key(n, part)).collect()).collect();
    let one_more = [key(1000, 0)];
    type GiveUp = fn(&mut Core, &[u64]);
    let ways: [(&str, bool, GiveUp); 6] = [
        ("aborted", false, |core, ids| ids.iter().for_each(|id| core.close_group(*id))),
        ("committed", false, |core, ids| {
            ids.iter().for_each(|id| drop(core.pending_groups.take(*id)))
        }),
        ("link ended", true, |core, ids| core.release_group_links(ids.iter().copied(), Mono(5))),
        ("expired", false, |core, _| core.drop_expired_groups(FAR)),
        ("cleared", false, |core, _| core.clear_pending_groups(NAMESPACE)),
        ("closed", false, |core, _| core.drop_pending_groups()),
    ];
    let store = store();
    let mut core = store.shared.lock();
    for (way, over_link, give_up) in ways {
        for round in 0..2 {
            let begun =
                groups.iter().map(|group| begin(&mut core, group, FAR, over_link).expect(way));
            let ids: Vec<u64> = begun.collect();
            let error = begin(&mut core, &one_more, FAR, false).expect_err("no room");
            assert_eq!(error.kind, crate::api::error::ErrorKind::Busy, "{way}");
            give_up(&mut core, &ids);
            assert_eq!(
                (core.pending_groups.len(), core.pending_groups.required),
                (0, 0),
                "{way} round={round}"
            );
        }
    }
}

/// Groups are begun continuously, with deadlines in any order.
#[test]
fn open_group_is_dropped_exactly_at_its_deadline() {
    let store = store();
    let mut core = store.shared.lock();
    let mut open: Vec<(u64, u64)> = Vec::new();
    for now in 0..500u64 {
        // From 1 to 13 later, so that a group may expire before or after the group begun before it.
        let deadline = now + 1 + now * 7 % 13;
        let id = begin(&mut core, &[key(now, 0)], Mono(deadline), false).expect("room");
        open.push((id, deadline));
        if now % 11 == 3 {
            // A committed group does not change the deadlines of the others.
            let (id, _) = open.remove(open.len() / 2);
            core.pending_groups.take(id).expect("open");
        }
        core.drop_expired_groups(Mono(now));
        open.retain(|(_, deadline)| *deadline > now);
        let present: Vec<u64> = core.pending_groups.open.keys().copied().collect();
        assert_eq!(present, open.iter().map(|(id, _)| *id).collect::<Vec<_>>(), "now={now}");
    }
    core.drop_expired_groups(FAR);
    assert_eq!(core.pending_groups.len(), 0);
}

/// The open groups have later deadlines.
#[test]
fn attached_group_is_dropped_exactly_at_its_deadline() {
    let store = store();
    let mut core = store.shared.lock();
    let mut due = Vec::new();
    for now in 0..200u64 {
        let deadline = now + 1 + now * 5 % 9;
        let (base, members, existing) = (key(now, 0), Members::new(), Vec::new());
        let attached =
            AttachedGroup { base, generation: Generation::FIRST, at: at(), members, existing };
        core.pending_groups.add_attached(attached, Mono(deadline));
        due.push(deadline);
        begin(&mut core, &[key(10_000 + now, 0)], FAR, false).expect("room");
        core.drop_expired_groups(Mono(now));
        due.retain(|deadline| *deadline > now);
        let pending = core.pending_groups.attached.values().map(Vec::len).sum::<usize>();
        assert_eq!(pending, due.len(), "now={now}");
    }
}

/// Between the moment when a commit takes the objects and the moment when they are visible, only
/// the generation shows that the namespace was cleared.
#[test]
fn clear_during_commit_of_only_group_raises_generation() {
    let store = store();
    let (shared, key) = (&store.shared, key(1, 0));
    let group = store.begin_group(&[key], crate::api::request::Options::default()).expect("begun");
    let put = crate::PutSlice { key, pieces: &[b"bytes"] };
    group.put(&[put], crate::api::request::Options::default()).remove(0).expect("put");
    let clear = || crate::store::remove::begin_clear(shared, NAMESPACE).expect("cleared").0;
    let take_member = |core: &mut Core| {
        let (_, open) = core.pending_groups.open.iter_mut().next().expect("an open group");
        open.take_member(0).expect("its object")
    };
    let member = take_member(&mut shared.lock());
    assert_eq!(clear(), Generation(2));
    let mut core = shared.lock();
    let (_, open) = core.pending_groups.open.iter_mut().next().expect("still open");
    assert!(open.restore_member(member).is_none());
    drop(core);
    group.abort();
    assert_eq!(clear(), Generation(3), "a namespace that has a row keeps it");
}

/// Each put of an attached group, and each lookup of an absent object, searches those of its page.
#[test]
fn attached_groups_that_wait_on_one_page_are_limited() {
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(32);
    config.index.max_objects = Some(10_000);
    let limits = MachineLimits::of_this_machine().expect("facts");
    let store = Store::open(config.validate(&limits).expect("valid")).expect("opened");
    let put = |page, part| {
        let object = [crate::PutSlice { key: key(page, part), pieces: &[b"bytes"] }];
        let groups = [(key(page, 0), &object[..])];
        let at_once = crate::api::request::Options::default().wait(std::time::Duration::ZERO);
        store.put_attached(&groups, at_once).remove(0)
    };
    let waiting = Ok(crate::PutOutcome::Waiting);
    for part in 1..=ATTACHED_OF_PAGE_MAX {
        assert_eq!(put(1, part), waiting, "part={part}");
    }
    let refused = put(1, ATTACHED_OF_PAGE_MAX + 1).expect_err("too many");
    assert!(refused.message.starts_with("too many attached groups wait"), "{refused:?}");
    assert_eq!(put(1, 1), waiting, "again");
    assert_eq!(put(2, 1), waiting, "on another page");
}
