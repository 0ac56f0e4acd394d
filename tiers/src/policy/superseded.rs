//! Recurrent states that a longer prefix has superseded, and that are expected to leave unused.
//!
//! A model with recurrent layers has one state for a whole prefix. A prompt is continued from the
//! longest prefix with a state, and then has a state of its own. So the former state is of use only
//! to a prompt that diverges between the two. It leaves first, unless
//! - two continuations of its page are known: then others may diverge there too; or
//! - states that superseded ones were expected not to be needed were requested too often.

use super::predictions::Predictions;

/// Pages whose continuation is known. A collision replaces the older one.
const CONTINUATIONS: usize = 1 << 16;
/// Prompts whose state is awaited.
const AWAITED: usize = 1 << 10;
/// Superseded states are followed while at least this share of them is not requested again.
const TRUST: f64 = 0.95;
/// The only row of the predictions.
const ROW: usize = 0;

/// The next page of a page with a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Continuation {
    /// Parts of the hashes of both; 0 for none.
    page: u32,
    next: u32,
}

/// Two different next pages are known.
const SEVERAL: u32 = 0;

/// A state that will be superseded by one that is awaited.
#[derive(Clone, Copy, Debug)]
struct Awaited<P> {
    /// Hash of the last page of the prompt.
    last: u64,
    /// Hash of the page whose state the prompt is continued from, and its name.
    from: (u64, P),
}

/// A lookup of a prompt whose states are in one pool.
pub struct StateLookup<'a, P> {
    /// The hash of a page of the prompt, which scatters and differs for each pool.
    pub hash: &'a dyn Fn(usize) -> u64,
    /// The name of a page.
    pub name: &'a dyn Fn(usize) -> P,
    /// Pages of the prompt.
    pub pages: usize,
    /// Which of the leading present pages have a state.
    pub states: &'a [bool],
    /// Pages of the longest prefix that can be used; its last one has a state.
    pub usable: usize,
}

/// Which states are superseded. `P` names a page. Memory is some 700 KB, from the first lookup of a
/// prompt with a state.
#[derive(Debug)]
pub struct SupersededStates<P> {
    continuations: Vec<Continuation>,
    awaited: Vec<Option<Awaited<P>>>,
    predictions: Predictions,
}

impl<P: Copy> SupersededStates<P> {
    /// Nothing known yet, in a store of at most `pages` pages.
    pub fn new(pages: u64) -> SupersededStates<P> {
        let predictions = Predictions::new(1, TRUST, pages);
        SupersededStates { continuations: Vec::new(), awaited: Vec::new(), predictions }
    }

    /// A prompt was looked up. Returns its pages whose states should leave first.
    pub fn look_up(&mut self, lookup: &StateLookup<'_, P>) -> Vec<usize> {
        let StateLookup { hash, name, pages, states, usable } = *lookup;
        // The prompt would be continued from the last state that was expected to leave, whether it
        // did leave or not.
        let deepest = usable.saturating_sub(1)..states.len();
        let _ = deepest.rev().any(|page| self.predictions.request(hash(page)));
        let mut superseded = Vec::new();
        for page in (0..usable).filter(|page| states[*page] && page + 1 < pages) {
            let several = self.note_continuation(hash(page), hash(page + 1));
            if page + 1 < usable && !several && self.predictions.predict(ROW, &[hash(page)]) {
                superseded.push(page);
            }
        }
        if (1..pages).contains(&usable) {
            let from = (hash(usable - 1), name(usable - 1));
            self.awaited.resize(AWAITED, None);
            let last = hash(pages - 1);
            self.awaited[last as usize % AWAITED] = Some(Awaited { last, from });
        }
        superseded
    }

    /// The state of a page was put. Returns the page whose state it supersedes, if that should
    /// leave first.
    pub fn put(&mut self, page: u64) -> Option<P> {
        let place = self.awaited.get_mut(page as usize % AWAITED)?;
        let (from, name) = place.take_if(|awaited| awaited.last == page)?.from;
        let is_trusted = !self.has_several(from) && self.predictions.predict(ROW, &[from]);
        is_trusted.then_some(name)
    }

    /// Note the next page of a page; returns whether several are known.
    fn note_continuation(&mut self, page: u64, next: u64) -> bool {
        self.continuations.resize(CONTINUATIONS, Continuation::default());
        let known = &mut self.continuations[page as usize % CONTINUATIONS];
        let (page, next) = (part(page), part(next));
        if known.page != page {
            *known = Continuation { page, next };
        } else if known.next != next {
            known.next = SEVERAL;
        }
        known.next == SEVERAL
    }

    fn has_several(&self, page: u64) -> bool {
        let known = self.continuations.get(page as usize % CONTINUATIONS);
        known.is_some_and(|known| known.page == part(page) && known.next == SEVERAL)
    }
}

/// The upper half of a hash, never 0.
fn part(hash: u64) -> u32 {
    ((hash >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(page: u64) -> u64 {
        (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page << 40
    }

    /// Look up a prompt, of which the leading `states` pages are present.
    fn look_up(
        superseded: &mut SupersededStates<u64>,
        prompt: &[u64],
        states: &[bool],
    ) -> Vec<usize> {
        let usable = states.iter().rposition(|state| *state).map_or(0, |page| page + 1);
        superseded.look_up(&StateLookup {
            hash: &|page| hash(prompt[page]),
            name: &|page| prompt[page],
            pages: prompt.len(),
            states,
            usable,
        })
    }

    #[test]
    fn states_before_the_one_gone_on_from_are_superseded() {
        let mut superseded = SupersededStates::new(1000);
        let found = look_up(&mut superseded, &[1, 2, 3, 4, 5], &[true, false, true, true]);
        assert_eq!(found, [0, 2]);
    }

    #[test]
    fn put_of_longer_state_supersedes_the_one_it_was_computed_from() {
        let mut superseded = SupersededStates::new(1000);
        look_up(&mut superseded, &[1, 2, 3], &[false, true]);
        assert_eq!(superseded.put(hash(9)), None, "another prompt");
        assert_eq!(superseded.put(hash(3)), Some(2));
        assert_eq!(superseded.put(hash(3)), None, "once");
    }

    #[test]
    fn state_of_page_with_two_continuations_is_not_superseded() {
        let mut superseded = SupersededStates::new(1000);
        look_up(&mut superseded, &[1, 2, 3], &[false, true]);
        look_up(&mut superseded, &[1, 2, 4], &[false, true]);
        assert_eq!((superseded.put(hash(3)), superseded.put(hash(4))), (None, None));
        assert!(look_up(&mut superseded, &[1, 2, 4, 5], &[false, true, true]).is_empty());
    }

    #[test]
    fn superseded_states_stay_where_prompts_go_back_to_them() {
        let mut superseded = SupersededStates::new(1000);
        let mut followed = |from: u64, goes_back: bool| {
            let prompts = from..from + 200;
            let put = |n: u64| {
                let prompt = [10 * n, 10 * n + 1, 10 * n + 2];
                look_up(&mut superseded, &prompt, &[true]);
                let is_superseded = superseded.put(hash(10 * n + 2)).is_some();
                if goes_back {
                    look_up(&mut superseded, &[10 * n, 10 * n + 7], &[true]);
                }
                usize::from(is_superseded)
            };
            prompts.map(put).sum::<usize>()
        };
        assert_eq!(followed(1, false), 200);
        let back = followed(1001, true);
        assert!(back < 30, "{back}");
    }

    #[test]
    fn prompt_without_a_usable_state_supersedes_none() {
        let mut superseded = SupersededStates::new(1000);
        assert!(look_up(&mut superseded, &[1, 2, 3], &[false, false]).is_empty());
        assert!(look_up(&mut superseded, &[], &[]).is_empty());
        assert_eq!(superseded.put(hash(3)), None);
    }
}
