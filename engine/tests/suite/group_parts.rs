//! Parts of groups of many pages in one call: each page is invisible until its last part, then
//! whole.

use super::harness::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, Options, PutOutcome, PutSlice, Result};

use super::env::TestEnv;
use super::helpers::*;

type Object = (ObjectKey, Vec<u8>);

/// Put the objects that `chosen` selects of each page, one part per page.
fn put_parts(
    store: &Store,
    pages: &[Vec<Object>],
    chosen: impl Fn(usize, usize) -> bool,
) -> Vec<Result<PutOutcome>> {
    // Templates may name any page: this one is never put.
    let required: Vec<ObjectKey> =
        group(777, pages[0].len() as u64).iter().map(|(key, _)| *key).collect();
    let pieces: Vec<Vec<[&[u8]; 1]>> = pages
        .iter()
        .map(|page| page.iter().map(|(_, bytes)| [bytes.as_slice()]).collect())
        .collect();
    let part = |(n, page): (usize, &Vec<Object>)| -> Vec<PutSlice<'_>> {
        let objects =
            page.iter().zip(&pieces[n]).enumerate().filter(|(member, _)| chosen(n, *member));
        objects.map(|(_, ((key, _), pieces))| PutSlice { key: *key, pieces }).collect()
    };
    let parts: Vec<Vec<PutSlice<'_>>> = pages.iter().enumerate().map(part).collect();
    let parts: Vec<&[PutSlice<'_>]> = parts.iter().map(Vec::as_slice).collect();
    store.put_parts(&required, &parts, Options::default())
}

fn present_count(store: &Store, page: &[Object]) -> usize {
    page.iter().filter(|(key, bytes)| is_present(store, *key, bytes)).count()
}

pub fn last_part_makes_a_page_visible(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    let pages: Vec<Vec<Object>> = (1..9).map(|n| group(n, 4)).collect();
    let sidecars = put_parts(&store, &pages, |_, member| member >= 2);
    assert_eq!(sidecars, vec![Ok(PutOutcome::Waiting); 8]);
    assert!(pages.iter().all(|page| present_count(&store, page) == 0));
    // One object of page 3 is never put.
    let rest = put_parts(&store, &pages, |n, member| member == 0 || (member == 1 && n != 3));
    for (n, outcome) in rest.into_iter().enumerate() {
        assert_eq!(
            outcome,
            Ok(if n == 3 { PutOutcome::Waiting } else { PutOutcome::Stored }),
            "n={n}"
        );
        assert_eq!(present_count(&store, &pages[n]), if n == 3 { 0 } else { 4 }, "n={n}");
    }
    assert_eq!(store.stats().groups_waiting, 1);
    if world.tells_keys_apart() {
        let again = put_parts(&store, &pages, |n, member| n != 3 || member == 0);
        let expected =
            |n| Ok(if n == 3 { PutOutcome::Waiting } else { PutOutcome::AlreadyPresent });
        assert_eq!(again, (0..8).map(expected).collect::<Vec<_>>());
        assert_eq!(store.stats().puts_present, 7 * 4 + 1, "each object that was put again");
    }
    flush(&store);
    let store = world.crash(store, &config);
    for (n, page) in pages.iter().enumerate() {
        assert_eq!(present_count(&store, page), if n == 3 { 0 } else { 4 }, "n={n}");
    }
}

pub fn invalid_part_is_named_and_other_parts_are_put(world: &TestEnv) {
    let store = world.open(&world.config());
    let mut pages: Vec<Vec<Object>> = (1..4).map(|n| group(n, 3)).collect();
    // The second page has an object that its group does not require.
    pages[1][2].0 = key_in(namespace("m"), 2, "stranger");
    let outcomes = put_parts(&store, &pages, |_, _| true);
    assert_eq!((&outcomes[0], &outcomes[2]), (&Ok(PutOutcome::Stored), &Ok(PutOutcome::Stored)));
    let message = format!("the group does not require the object key={}", pages[1][2].0);
    refused(outcomes[1].clone(), ErrorKind::Invalid, &message);
    assert_eq!(pages.iter().map(|page| present_count(&store, page)).collect::<Vec<_>>(), [3, 0, 3]);
    let outcomes = put_parts(&store, &pages[2..], |_, _| false);
    refused(outcomes[0].clone(), ErrorKind::Invalid, "a group has no object");
}
