//! Ends of sessions in a trace, and hints of them that are partly wrong.
//!
//! Traces do not name sessions. A request goes on with a session if it has one of the last blocks
//! of the session's latest request: the last block of a prompt may be filled partly, and the next
//! prompt has another one in its place.

use std::collections::HashMap;

use crate::rng::SplitMix64;

/// Last blocks of a request by which the next one is recognized.
const LAST_BLOCKS: usize = 3;
/// The seed by which wrong and missing hints are chosen.
const SEED: u64 = 1;

/// For each request, whether it is the last of its session. The first block of a request does not
/// identify a session, since others may begin alike.
pub(super) fn ends<'a>(requests: impl Iterator<Item = &'a [u32]>) -> Vec<bool> {
    let mut latest: HashMap<u32, usize> = HashMap::new();
    let mut ends = Vec::new();
    for (number, blocks) in requests.enumerate() {
        if let Some(before) = blocks.iter().rev().find_map(|block| latest.get(block)) {
            ends[*before] = false;
        }
        ends.push(true);
        let last = blocks.iter().skip(1).rev().take(LAST_BLOCKS);
        last.for_each(|block| _ = latest.insert(*block, number));
    }
    ends
}

/// Hints of these ends: the share `wrong` of the ends has no hint, and the same share of the hints
/// is given with other requests, as far as there are any.
pub(super) fn hints(ends: &[bool], wrong: f64) -> Vec<bool> {
    let mut numbers = SplitMix64::new(SEED);
    let mut hints: Vec<bool> = ends.iter().map(|end| *end && numbers.unit() >= wrong).collect();
    let right = hints.iter().filter(|hint| **hint).count();
    let mut others: Vec<usize> = (0..ends.len()).filter(|at| !ends[*at]).collect();
    let wanted = (right as f64 * wrong / (1.0 - wrong).max(0.01)) as usize;
    for _ in 0..wanted.min(others.len()) {
        let at = numbers.within(0, others.len() as u64 - 1) as usize;
        hints[others.swap_remove(at)] = true;
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_with_a_last_block_of_another_goes_on_with_its_session() {
        // The second goes on with the first, whose last block was filled partly; the third shares
        // only its beginning with them; the fourth goes on with the third.
        let requests: [&[u32]; 4] = [&[0, 1, 2], &[0, 1, 3, 4], &[0, 5, 6], &[0, 5, 6, 7]];
        assert_eq!(ends(requests.into_iter()), [false, true, false, true]);
    }

    #[test]
    fn requests_of_one_block_are_sessions_of_their_own() {
        let requests: [&[u32]; 3] = [&[0], &[0], &[]];
        assert_eq!(ends(requests.into_iter()), [true; 3]);
    }

    #[test]
    fn share_of_the_hints_is_wrong_and_as_many_ends_have_none() {
        let all: Vec<bool> = (0..9000).map(|n| n % 3 != 0).collect();
        assert_eq!(hints(&all, 0.0), all);
        let hints = hints(&all, 0.2);
        let count = |is: fn(bool, bool) -> bool| {
            hints.iter().zip(&all).filter(|(hint, end)| is(**hint, **end)).count() as f64
        };
        let (given, wrong) = (count(|hint, _| hint), count(|hint, end| hint && !end));
        let missing = count(|hint, end| end && !hint);
        assert!((wrong / given - 0.2).abs() < 0.01, "{wrong} {given}");
        assert!((missing / 6000.0 - 0.2).abs() < 0.02, "{missing}");
    }
}
