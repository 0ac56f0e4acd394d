use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Shard;

use super::*;
use crate::config::{Config, Facts};
use crate::store::embedded::Store;

const NAMESPACE: NamespaceId = NamespaceId([3; 16]);
const FAR: Mono = Mono(u64::MAX / 2);

fn store() -> Store {
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(1);
    config.index.max_objects = Some(100);
    Store::open(config.validate(&Facts::of_this_machine().expect("facts")).expect("valid")).expect("opened")
}

fn key(n: u64, part: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    let key =
        ObjectKey::new(NAMESPACE, PrefixHash(hash), Role::Target, "kv", &format!("c{part}"), Shard::Whole);
    key.expect("a key")
}

fn at() -> Recency {
    Recency { epoch: 0, depth: 0 }
}

fn begin(core: &mut Core, required: &[ObjectKey], deadline: Mono, over_link: bool) -> Result<u64> {
    core.pending_groups.join(required, Generation::FIRST, at(), deadline, over_link).map(|(id, _)| id)
}

/// As many objects as all open groups may require are begun and given up, twice in each way: there is room for as many again.
#[test]
fn groups_given_up_in_any_way_leave_their_room() {
    let groups: Vec<Vec<ObjectKey>> =
        (0..64).map(|n| (0..REQUIRED_MAX / 64).map(|part| key(n, part)).collect()).collect();
    let one_more = [key(1000, 0)];
    type GiveUp = fn(&mut Core, &[u64]);
    let ways: [(&str, bool, GiveUp); 6] = [
        ("aborted", false, |core, ids| ids.iter().for_each(|id| core.close_group(*id))),
        ("committed", false, |core, ids| ids.iter().for_each(|id| drop(core.pending_groups.take(*id)))),
        ("left by its link", true, |core, ids| core.release_group_links(ids.iter().copied(), Mono(5))),
        ("over", false, |core, _| core.drop_expired_groups(FAR)),
        ("cleared", false, |core, _| core.clear_pending_groups(NAMESPACE)),
        ("closed", false, |core, _| core.drop_pending_groups()),
    ];
    let store = store();
    let mut core = store.shared.lock();
    for (way, over_link, give_up) in ways {
        for round in 0..2 {
            let begun = groups.iter().map(|group| begin(&mut core, group, FAR, over_link).expect(way));
            let ids: Vec<u64> = begun.collect();
            let error = begin(&mut core, &one_more, FAR, false).expect_err("no room");
            assert_eq!(error.kind, crate::ErrorKind::Busy, "{way}");
            give_up(&mut core, &ids);
            assert_eq!((core.pending_groups.len(), core.pending_groups.required), (0, 0), "{way} round={round}");
        }
    }
}

/// Groups are begun all the time, with deadlines in any order: each goes at its own, and none before.
#[test]
fn group_goes_at_its_own_deadline_however_many_are_begun() {
    let store = store();
    let mut core = store.shared.lock();
    let mut open: Vec<(u64, u64)> = Vec::new();
    for now in 0..500u64 {
        // From 1 to 13 later, so that a later one is begun behind an earlier one, and before.
        let deadline = now + 1 + now * 7 % 13;
        let id = begin(&mut core, &[key(now, 0)], Mono(deadline), false).expect("room");
        open.push((id, deadline));
        if now % 11 == 3 {
            // One that is committed meanwhile changes nothing about the others.
            let (id, _) = open.remove(open.len() / 2);
            core.pending_groups.take(id).expect("open");
        }
        core.drop_expired_groups(Mono(now));
        open.retain(|(_, deadline)| *deadline > now);
        let there: Vec<u64> = core.pending_groups.open.keys().copied().collect();
        assert_eq!(there, open.iter().map(|(id, _)| *id).collect::<Vec<_>>(), "now={now}");
    }
    core.drop_expired_groups(FAR);
    assert_eq!(core.pending_groups.len(), 0);
}

/// The same of what waits for its base, among groups that are begun.
#[test]
fn what_waits_for_its_base_goes_at_its_own_deadline() {
    let store = store();
    let mut core = store.shared.lock();
    let mut due = Vec::new();
    for now in 0..200u64 {
        let deadline = now + 1 + now * 5 % 9;
        let (base, members, existing) = (key(now, 0), Members::new(), Vec::new());
        let attached = AttachedGroup { base, generation: Generation::FIRST, at: at(), members, existing };
        core.pending_groups.add_attached(attached, Mono(deadline));
        due.push(deadline);
        begin(&mut core, &[key(10_000 + now, 0)], FAR, false).expect("room");
        core.drop_expired_groups(Mono(now));
        due.retain(|deadline| *deadline > now);
        let waits = core.pending_groups.attached.values().map(Vec::len).sum::<usize>();
        assert_eq!(waits, due.len(), "now={now}");
    }
}

/// Between the moment when it hands out its objects and the one when they are visible: the generation alone tells that it was cleared.
#[test]
fn clear_of_a_namespace_whose_only_group_is_being_committed_raises_its_generation() {
    let store = store();
    let (shared, key) = (&store.shared, key(1, 0));
    let group = store.begin_group(&[key], crate::Options::default()).expect("begun");
    let put = crate::PutSlice { key, pieces: &[b"bytes"] };
    group.put(&[put], crate::Options::default()).remove(0).expect("put");
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
