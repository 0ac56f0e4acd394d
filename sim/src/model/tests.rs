//! Tests of the model, event by event.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::Role;
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::shard::Shard;

use super::*;

fn key(component: &str) -> ObjectKey {
    let ns = Namespace::default().id();
    ObjectKey::new(ns, PrefixHash([1; 32]), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn model_after(evicts: bool, events: &[ModelEvent]) -> Model {
    let mut model = Model::new(evicts);
    events.iter().for_each(|e| model.apply(e));
    model
}

fn put(n: u64, keys: &[&str]) -> [ModelEvent; 2] {
    put_as(n, None, keys, PutEnd::Stored(Vec::new()))
}

fn put_as(n: u64, base: Option<&str>, keys: &[&str], end: PutEnd) -> [ModelEvent; 2] {
    let members = keys.iter().map(|k| key(k)).collect();
    [ModelEvent::PutBegun(Put(n), base.map(key), members), ModelEvent::PutEnded(Put(n), end)]
}

fn allowed(events: &[ModelEvent]) -> (Vec<u64>, bool) {
    allowed_of("k", events)
}

fn allowed_of(component: &str, events: &[ModelEvent]) -> (Vec<u64>, bool) {
    let Allowed { puts, miss } = model_after(false, events).allowed(&key(component));
    (puts.into_iter().map(|p| p.0).collect(), miss)
}

#[test]
fn acked_put_hits_until_crash_and_after_it_if_flushed() {
    let [begun, ended] = put(1, &["k"]);
    assert_eq!(allowed(&[]), (vec![], true));
    assert_eq!(allowed(std::slice::from_ref(&begun)), (vec![1], true));
    assert_eq!(allowed(&[begun.clone(), ended.clone()]), (vec![1], false));
    assert_eq!(allowed(&[begun.clone(), ended.clone(), ModelEvent::Died]), (vec![1], true));
    let flush = [ModelEvent::FlushBegun, ModelEvent::FlushEnded(true), ModelEvent::Died];
    assert_eq!(allowed(&[&[begun.clone(), ended.clone()][..], &flush].concat()), (vec![1], false));
    let failed =
        [begun, ended, ModelEvent::FlushBegun, ModelEvent::FlushEnded(false), ModelEvent::Died];
    assert_eq!(allowed(&failed), (vec![1], true));
}

#[test]
fn flush_covers_only_earlier_puts() {
    let late = [
        &[ModelEvent::FlushBegun][..],
        &put(1, &["k"]),
        &[ModelEvent::FlushEnded(true), ModelEvent::Died],
    ];
    assert_eq!(allowed(&late.concat()), (vec![1], true));
}

#[test]
fn removed_or_cleared_object_never_comes_back() {
    let flushed =
        [&put(1, &["k"])[..], &[ModelEvent::FlushBegun, ModelEvent::FlushEnded(true)]].concat();
    let removed = |end: &[ModelEvent]| {
        allowed(&[&flushed[..], &[ModelEvent::RemoveBegun(key("k"))], end].concat())
    };
    assert_eq!(removed(&[ModelEvent::Died]), (vec![1], true));
    assert_eq!(
        removed(&[ModelEvent::RemoveEnded(key("k"), true), ModelEvent::Died]),
        (vec![], true)
    );
    let ns = key("k").namespace();
    let cleared = [ModelEvent::ClearBegun(ns), ModelEvent::ClearEnded(ns, true)];
    assert_eq!(allowed(&[&flushed[..], &cleared].concat()), (vec![], true));
    let again = [&flushed[..], &cleared, &put(2, &["k"])].concat();
    assert_eq!(allowed(&again), (vec![2], false));
}

#[test]
fn seen_answer_stays_after_crash() {
    let crashed = [&put(1, &["k"])[..], &[ModelEvent::Died]].concat();
    let seen = |put| allowed(&[&crashed[..], &[ModelEvent::Seen(key("k"), put)]].concat());
    assert_eq!(seen(Some(Put(1))), (vec![1], false));
    assert_eq!(seen(None), (vec![], true));
}

#[test]
fn partial_group_is_judged_wrong() {
    let events = [&put(1, &["k", "v"])[..], &[ModelEvent::Died]].concat();
    let judge = |k: Option<Put>, v: Option<Put>| {
        model_after(false, &events).judge(&BTreeMap::from([(key("k"), k), (key("v"), v)])).len()
    };
    assert_eq!(judge(None, None), 0);
    assert_eq!(judge(Some(Put(1)), Some(Put(1))), 0);
    assert_eq!(judge(Some(Put(1)), None), 1);
    assert_eq!(judge(Some(Put(2)), Some(Put(2))), 2, "bytes of no put");
}

#[test]
fn wrapping_log_may_miss_unpinned_objects_only() {
    let events =
        [&put(1, &["k"])[..], &[ModelEvent::FlushBegun, ModelEvent::FlushEnded(true)]].concat();
    assert!(model_after(true, &events).allowed(&key("k")).miss);
    let pinned = [&events[..], &[ModelEvent::Pinned(key("k")), ModelEvent::Died]].concat();
    assert!(!model_after(true, &pinned).allowed(&key("k")).miss);
}

const FLUSH: [ModelEvent; 2] = [ModelEvent::FlushBegun, ModelEvent::FlushEnded(true)];

#[test]
fn remove_takes_whole_group_for_good() {
    let flushed = [&put(1, &["k", "v"])[..], &FLUSH].concat();
    let removed = [
        ModelEvent::RemoveBegun(key("k")),
        ModelEvent::RemoveEnded(key("k"), true),
        ModelEvent::Died,
    ];
    assert_eq!(allowed_of("v", &[&flushed[..], &removed].concat()), (vec![], true));
    // Removing an object that was stored alone removes nothing else.
    let single = [&flushed[..], &put(2, &["x"]), &FLUSH].concat();
    let removed = [
        ModelEvent::RemoveBegun(key("x")),
        ModelEvent::RemoveEnded(key("x"), true),
        ModelEvent::Died,
    ];
    assert_eq!(allowed_of("v", &[&single[..], &removed].concat()), (vec![1], false));
}

#[test]
fn kept_member_keeps_bytes_and_is_judged_with_group() {
    let group = put_as(2, None, &["k", "v"], PutEnd::Stored(vec![key("v")]));
    let events = [&put(1, &["v"])[..], &FLUSH, &group].concat();
    assert_eq!(allowed_of("v", &events), (vec![1], false));
    let judge = |k, v| {
        let died = [&events[..], &[ModelEvent::Died]].concat();
        model_after(false, &died).judge(&BTreeMap::from([(key("k"), k), (key("v"), v)])).len()
    };
    assert_eq!(judge(Some(Put(2)), Some(Put(1))), 0);
    assert_eq!(judge(None, Some(Put(1))), 0, "the group is lost, but not the flushed object");
    assert_eq!(judge(Some(Put(2)), None), 2);
    let before = |events: &[ModelEvent]| {
        BTreeMap::from([(key("v"), model_after(false, events).allowed(&key("v")))])
    };
    let allowed_before = before(&put(1, &["v"]));
    assert_eq!(Model::judge_end(&allowed_before, &PutEnd::Stored(vec![key("v")])).len(), 0);
    assert_eq!(
        Model::judge_end(&allowed_before, &PutEnd::Stored(vec![])).len(),
        1,
        "other bytes took its place"
    );
    assert_eq!(Model::judge_end(&before(&[]), &PutEnd::Stored(vec![key("v")])).len(), 1);
}

#[test]
fn attached_group_is_visible_only_with_base() {
    let attached = put_as(2, Some("k"), &["m", "n"], PutEnd::Stored(Vec::new()));
    let both = [&put(1, &["k", "v"])[..], &attached, &FLUSH].concat();
    assert_eq!(allowed_of("m", &both), (vec![2], false));
    let removed = [ModelEvent::RemoveBegun(key("v")), ModelEvent::RemoveEnded(key("v"), true)];
    let bare = [&both[..], &removed].concat();
    assert_eq!(allowed_of("m", &bare), (vec![], true));
    assert_eq!(
        allowed_of("m", &[&bare[..], &put(3, &["k", "v"])].concat()),
        (vec![], true),
        "removed with it"
    );
    let again = put_as(2, Some("k"), &["m", "n"], PutEnd::Stored(Vec::new()));
    let lost =
        [&put(1, &["k", "v"])[..], &FLUSH, &put(4, &["x"]), &again, &[ModelEvent::Died]].concat();
    assert_eq!(allowed_of("m", &lost), (vec![2], true));
    let bare =
        [&put(1, &["k", "v"])[..], &again, &[ModelEvent::Died, ModelEvent::Seen(key("k"), None)]]
            .concat();
    assert_eq!(allowed_of("m", &bare), (vec![], true));
    let based = [&bare[..], &[ModelEvent::Seen(key("m"), None)], &put(3, &["k", "v"])].concat();
    assert_eq!(allowed_of("m", &based), (vec![2], true), "dropped by recovery, and on SSD still");
    let judge = |k, m, n| {
        let answers = [("k", k), ("v", k), ("m", m), ("n", n)].map(|(c, put)| (key(c), put));
        model_after(true, &both).judge(&BTreeMap::from(answers)).len()
    };
    assert_eq!(judge(Some(Put(1)), Some(Put(2)), Some(Put(2))), 0);
    assert_eq!(judge(Some(Put(1)), None, None), 0);
    assert_eq!(judge(Some(Put(1)), Some(Put(2)), None), 1);
    assert_eq!(judge(None, Some(Put(2)), Some(Put(2))), 1);
}

#[test]
fn waiting_group_appears_with_base_or_never() {
    let waits = put_as(1, Some("k"), &["m"], PutEnd::Waiting);
    assert_eq!(allowed_of("m", &waits), (vec![], true));
    assert_eq!(allowed_of("m", &[&waits[..], &put(2, &["k", "v"])].concat()), (vec![1], false));
    let twice =
        [&waits[..], &put_as(3, Some("k"), &["m"], PutEnd::Waiting), &put(2, &["k", "v"])].concat();
    assert_eq!(allowed_of("m", &twice), (vec![1], false), "the first writer wins");
    let removed = [ModelEvent::RemoveBegun(key("m")), ModelEvent::RemoveEnded(key("m"), true)];
    assert_eq!(
        allowed_of("m", &[&waits[..], &removed, &put(2, &["k", "v"])].concat()),
        (vec![], true)
    );
    let begun = [&waits[..], &put(2, &["k", "v"])[..1]].concat();
    assert_eq!(allowed_of("m", &begun), (vec![1], true));
    for end in
        [ModelEvent::WaitingDropped, ModelEvent::Died, ModelEvent::ClearBegun(key("k").namespace())]
    {
        let late = [&waits[..], &[end], &put(2, &["k", "v"])].concat();
        assert_eq!(allowed_of("m", &late), (vec![], true));
    }
}
