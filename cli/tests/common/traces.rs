//! Traces with a known structure. Policies are chosen by measurement on real traces; these show
//! whether one fits the structure or only a trace.

use std::fmt::Write;
use std::path::Path;

/// A request: the ids of its blocks, each the prefix of the next.
pub type Requests = Vec<Vec<u64>>;

/// SplitMix64 (Steele, Lea, Flood, 2014).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `from` to `to`, both included.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A rank below `n`; rank r has weight 1 / (r + 1), approximately.
    pub fn zipf(&mut self, n: u64) -> u64 {
        let rank = ((n as f64 + 1.0).powf(self.unit()) - 1.0) as u64;
        rank.min(n - 1)
    }
}

/// The blocks of a document.
fn document(n: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|block| n * 1000 + block).collect()
}

/// Documents that are requested in turn, again and again.
pub fn looped(documents: u64, blocks: u64, requests: u64) -> Requests {
    (0..requests).map(|n| document(n % documents, blocks)).collect()
}

/// Popular documents, and between them documents that are requested once.
pub fn scanned(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let request = |n: u64| match n % 3 {
        0 => document(numbers.zipf(300), 12),
        _ => document(1_000_000 + n, 12),
    };
    (0..requests).map(request).collect()
}

/// Documents by their popularity, each with a question that is new.
pub fn popular(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let request = |n: u64| {
        let mut blocks = document(numbers.zipf(1500), 8);
        blocks.extend(document(2_000_000 + n, 4));
        blocks
    };
    (0..requests).map(request).collect()
}

/// Sessions that grow by some blocks a turn, and whose last block is new each time, as the partly
/// filled block of a prompt is.
pub fn sessions(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let mut sessions: Vec<Vec<u64>> = Vec::new();
    let mut next = 5_000_000_000;
    let mut new = |blocks: u64| {
        next += blocks;
        next - blocks..next
    };
    let mut all = Requests::new();
    for _ in 0..requests {
        let is_new = sessions.is_empty() || numbers.unit() < 0.4;
        let at = match is_new {
            true => {
                sessions.push(document(3_000 + numbers.zipf(8), 4));
                sessions.len() - 1
            }
            // Most sessions go on soon.
            false => {
                let back = (-(1.0 - numbers.unit()).ln() * 120.0) as usize;
                sessions.len() - 1 - back.min(sessions.len() - 1)
            }
        };
        let session = &mut sessions[at];
        session.extend(new(numbers.within(1, 8)));
        let mut request = session.clone();
        request.extend(new(1));
        all.push(request);
    }
    all
}

/// Sessions that grow, in which the share `edits` of the requests goes back to an earlier turn and
/// continues differently.
pub fn edited(seed: u64, requests: u64, edits: f64) -> Requests {
    grown(seed, requests, edits, 0.3)
}

/// Sessions of which most have one or two requests.
pub fn short_sessions(seed: u64, requests: u64) -> Requests {
    grown(seed, requests, 0.0, 0.6)
}

/// Sessions that grow: the share `new` of the requests begins one, and the share `edits` goes back.
fn grown(seed: u64, requests: u64, edits: f64, new: f64) -> Requests {
    let mut numbers = Numbers(seed);
    let mut sessions: Vec<Vec<Vec<u64>>> = Vec::new();
    let mut next = 6_000_000_000;
    let mut all = Requests::new();
    for _ in 0..requests {
        let mut turn = |blocks: u64| {
            next += blocks;
            (next - blocks..next).collect::<Vec<u64>>()
        };
        if sessions.is_empty() || numbers.unit() < new {
            sessions.push(vec![turn(4)]);
        }
        let back = (-(1.0 - numbers.unit()).ln() * 150.0) as usize;
        let at = sessions.len() - 1 - back.min(sessions.len() - 1);
        let turns = sessions[at].len() as u64;
        if turns > 1 && numbers.unit() < edits {
            sessions[at].truncate(numbers.within(1, turns - 1) as usize);
        }
        sessions[at].push(turn(numbers.within(1, 8)));
        all.push(sessions[at].concat());
    }
    all
}

/// Agents at work: each goes on with its own long prompt, a step after another, behind a prompt
/// that those of its kind share. Some steps begin a sub-agent, which has a copy of the prompt.
pub fn agents(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let mut next = 7_000_000_000;
    let mut new = |blocks: u64| {
        next += blocks;
        next - blocks..next
    };
    let mut running: Vec<(Vec<u64>, u64)> = Vec::new();
    let mut all = Requests::new();
    for _ in 0..requests {
        if running.len() < 40 {
            let mut prompt = document(5_000 + numbers.zipf(4), 20);
            prompt.extend(new(numbers.within(1, 10)));
            running.push((prompt, numbers.within(3, 40)));
        }
        let at = numbers.within(0, running.len() as u64 - 1) as usize;
        let (prompt, steps) = &mut running[at];
        prompt.extend(new(numbers.within(1, 6)));
        *steps -= 1;
        let (prompt, is_done) = (prompt.clone(), *steps == 0);
        if is_done {
            running.swap_remove(at);
        } else if numbers.unit() < 0.05 {
            running.push((prompt.clone(), numbers.within(2, 6)));
        }
        all.push(prompt);
    }
    all
}

/// Questions about several documents by popularity: only the first of them is behind the same
/// prefix each time.
pub fn retrieval(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let mut next = 8_000_000_000;
    let request = |_| {
        let first = numbers.zipf(2000);
        let mut blocks = vec![9_999_000];
        blocks.extend(document(10_000 + first, 6));
        // What follows another document has other prefixes.
        let second = numbers.zipf(2000);
        blocks.extend(document(20_000 + first * 2000 + second, 6));
        next += 2;
        blocks.extend(next - 2..next);
        blocks
    };
    (0..requests).map(request).collect()
}

/// Several workloads at the same time.
pub fn mixed(seed: u64, requests: u64) -> Requests {
    let mut numbers = Numbers(seed);
    let each = requests / 2;
    let mut parts = [sessions(seed, each), agents(seed + 1, each), scanned(seed + 2, each)];
    parts.iter_mut().for_each(|part| part.reverse());
    let next = |_| {
        let at = numbers.within(0, 2) as usize;
        parts[at].pop().unwrap_or_else(|| document(0, 1))
    };
    (0..requests).map(next).collect()
}

/// One workload after another.
pub fn shifted(seed: u64, requests: u64) -> Requests {
    let mut all = scanned(seed, requests / 2);
    all.extend(sessions(seed + 1, requests / 2));
    all
}

/// Write requests as a trace.
pub fn write(path: &Path, requests: &Requests) {
    let mut text = String::new();
    for (at, ids) in requests.iter().enumerate() {
        let input = ids.len() * 512;
        let line = format!("\"timestamp\":{at},\"input_length\":{input},\"output_length\":1");
        writeln!(text, "{{{line},\"hash_ids\":{ids:?}}}").unwrap();
    }
    std::fs::write(path, text).unwrap();
}
