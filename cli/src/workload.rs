//! The built-in workload: a simulated chat service with a seed. Users share a few system prompts. A
//! session grows by a question and an answer per turn, and each request contains its whole history.
//! The activity of sessions follows a Zipf distribution. A session that reaches its maximum length
//! is replaced by a new one.

use crate::rng::SplitMix64;
use crate::trace::TraceRequest;

/// Number of system prompts, and their lengths in pages.
const PROMPTS: u64 = 8;
const PROMPT_PAGES: (u64, u64) = (2, 8);
/// Number of open sessions, and the Zipf exponent of their activity (reported between 0.8 and 1 for
/// chat users).
const SESSIONS: usize = 400;
const ZIPF: f64 = 0.9;
/// Pages of a question, and of an answer.
const QUESTION_PAGES: (u64, u64) = (1, 4);
const ANSWER_PAGES: (u64, u64) = (0, 2);
/// Pages at which a session ends: 32k tokens in pages of 512.
const SESSION_PAGES_MAX: usize = 64;

/// Requests of the default run.
pub const REQUESTS_DEFAULT: u64 = 4_000;

/// An endless, seeded stream of requests.
pub struct Chat {
    rng: SplitMix64,
    /// The pages of each system prompt.
    prompts: Vec<Vec<u64>>,
    /// The pages so far of each open session, the busiest first.
    sessions: Vec<Vec<u64>>,
    /// Cumulative shares of activity of the sessions; the last is 1.
    shares: Vec<f64>,
    /// The next unused page.
    next_id: u64,
}

impl Chat {
    /// The workload of a seed.
    pub fn new(seed: u64) -> Chat {
        let weights: Vec<f64> = (1..=SESSIONS).map(|rank| (rank as f64).powf(-ZIPF)).collect();
        let total: f64 = weights.iter().sum();
        let shares = weights.iter().scan(0.0, |sum, w| {
            *sum += w / total;
            Some(*sum)
        });
        let mut chat = Chat {
            rng: SplitMix64::new(seed),
            prompts: Vec::new(),
            sessions: vec![Vec::new(); SESSIONS],
            shares: shares.collect(),
            next_id: 0,
        };
        for _ in 0..PROMPTS {
            let prompt = chat.new_pages(PROMPT_PAGES);
            chat.prompts.push(prompt);
        }
        chat
    }

    fn new_pages(&mut self, (from, to): (u64, u64)) -> Vec<u64> {
        let first = self.next_id;
        self.next_id += self.rng.within(from, to);
        (first..self.next_id).collect()
    }

    fn draw_session(&mut self) -> usize {
        let at = self.rng.unit();
        self.shares.partition_point(|end| *end <= at).min(SESSIONS - 1)
    }

    /// The next request: a session's history and a new question. The answer is part of the
    /// session's next request.
    pub fn next_request(&mut self) -> TraceRequest {
        let at = self.draw_session();
        let mut history = std::mem::take(&mut self.sessions[at]);
        if history.is_empty() || history.len() >= SESSION_PAGES_MAX {
            let prompt = self.rng.within(0, PROMPTS - 1) as usize;
            history = self.prompts[prompt].clone();
        }
        history.extend(self.new_pages(QUESTION_PAGES));
        let request = TraceRequest { whole_blocks: history.len(), hash_ids: history.clone() };
        history.extend(self.new_pages(ANSWER_PAGES));
        self.sessions[at] = history;
        request
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn requests(seed: u64, n: usize) -> Vec<Vec<u64>> {
        let mut chat = Chat::new(seed);
        (0..n).map(|_| chat.next_request().hash_ids).collect()
    }

    #[test]
    fn same_seed_gives_the_same_workload() {
        assert_eq!(requests(1, 500), requests(1, 500));
        assert_ne!(requests(1, 500), requests(2, 500));
    }

    #[test]
    fn each_id_always_follows_the_same_prefix() {
        let mut before: HashMap<u64, Option<u64>> = HashMap::new();
        for ids in requests(3, 3000) {
            let mut last = None;
            for id in ids {
                assert_eq!(*before.entry(id).or_insert(last), last, "id={id}");
                last = Some(id);
            }
        }
    }

    #[test]
    fn hit_ratio_is_between_half_and_95_percent() {
        let mut seen = std::collections::HashSet::new();
        let (mut pages, mut hits) = (0, 0);
        for ids in requests(4, REQUESTS_DEFAULT as usize) {
            assert!(!ids.is_empty() && ids.len() < SESSION_PAGES_MAX + 8, "pages={}", ids.len());
            pages += ids.len();
            hits += ids.iter().take_while(|id| seen.contains(*id)).count();
            seen.extend(ids);
        }
        let ratio = hits as f64 / pages as f64;
        assert!((0.5..0.95).contains(&ratio), "pages={pages} ratio={ratio}");
    }
}
