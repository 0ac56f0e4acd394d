//! The requests of a trace, in memory: blocks are numbered densely in the order of their first
//! request, so that the simulation indexes arrays with them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};

use super::sessions;
use crate::trace::Trace;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its blocks, from its head.
    pub blocks: &'a [u32],
    /// Number of leading blocks that the prompt fills completely.
    pub whole: usize,
    /// A hint says that its session ends with it.
    pub ends_session: bool,
}

/// The requests of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Name of the trace, for reports.
    pub name: String,
    /// Numbers of the requested blocks, request after request.
    blocks: Vec<u32>,
    /// End of each request in `blocks`.
    ends: Vec<usize>,
    /// Whole blocks of each request.
    whole: Vec<usize>,
    /// Requests with the hint that their session ends; empty without hints.
    session_ends: Vec<bool>,
    /// Number of different blocks.
    unique: usize,
}

impl Requests {
    /// Number the blocks of requests, each a prefix of block ids from its head.
    pub fn new(name: &str, requests: impl IntoIterator<Item = Vec<u64>>) -> Requests {
        let mut numbered = Requests { name: name.to_owned(), ..Requests::default() };
        let mut numbers = HashMap::new();
        for ids in requests {
            numbered.push(&mut numbers, &ids, ids.len());
        }
        numbered
    }

    /// Read a trace.
    ///
    /// # Errors
    /// The file cannot be read, a line is no request, or there is no block in the whole trace; each
    /// error names the file, and the line if there is one.
    pub fn read(path: &Path) -> anyhow::Result<Requests> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut requests = Requests { name, ..Requests::default() };
        let mut numbers = HashMap::new();
        for request in Trace::open(path)? {
            let request = request?;
            requests.push(&mut numbers, &request.hash_ids, request.whole_blocks);
            u32::try_from(numbers.len())
                .ok()
                .filter(|unique| *unique < u32::MAX)
                .with_context(|| format!("trace has too many blocks file={}", path.display()))?;
        }
        if requests.blocks.is_empty() {
            bail!("trace has no request with blocks file={}", path.display());
        }
        Ok(requests)
    }

    fn push(&mut self, numbers: &mut HashMap<u64, u32>, ids: &[u64], whole: usize) {
        for id in ids {
            let next = numbers.len() as u32;
            self.blocks.push(*numbers.entry(*id).or_insert(next));
        }
        self.ends.push(self.blocks.len());
        self.whole.push(whole);
        self.unique = numbers.len();
    }

    /// Add the hints that sessions end, of which the share `wrong` is wrong.
    #[must_use]
    pub fn with_session_ends(mut self, wrong: f64) -> Requests {
        self.session_ends = sessions::hints(&sessions::ends(self.iter()), wrong);
        self
    }

    /// The requests.
    pub fn all(&self) -> impl Iterator<Item = Request<'_>> {
        let hints = self.session_ends.iter().copied().chain(std::iter::repeat(false));
        let request = |((blocks, whole), ends_session): ((_, &usize), _)| Request {
            blocks,
            whole: *whole,
            ends_session,
        };
        self.iter().zip(&self.whole).zip(hints).map(request)
    }

    /// Number of different blocks that a request fills last, and completely.
    pub fn last_whole_blocks(&self) -> usize {
        let last =
            |request: Request<'_>| request.blocks.get(request.whole.checked_sub(1)?).copied();
        self.all().filter_map(last).collect::<std::collections::HashSet<u32>>().len()
    }

    /// The blocks of each request, from its head.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.blocks[start..*end])
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of different blocks.
    pub fn unique(&self) -> usize {
        self.unique
    }

    /// Number of requested blocks, each counted as often as it is requested.
    pub fn references(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_by_first_request() {
        let requests = Requests::new("t", [vec![90, 7], vec![], vec![90, 3, 7]]);
        assert_eq!(requests.iter().collect::<Vec<_>>(), [&[0, 1][..], &[], &[0, 2, 1]]);
        assert_eq!((requests.len(), requests.unique(), requests.references()), (3, 3, 5));
    }
}
