//! A push that is being sent: how far it is.

use crate::link::Push;

/// A push on its way.
pub(crate) struct Sending {
    pub push: Push,
    pub len: u64,
    /// Bytes that have a head already.
    pub framed: u64,
    /// Where the next byte to be written lies: the part, and the place in it.
    part: usize,
    at: usize,
}

impl Sending {
    pub fn new(push: Push, len: u64) -> Sending {
        Sending { push, len, framed: 0, part: 0, at: 0 }
    }

    /// The next `most` bytes to be written, in at most so many stretches.
    pub fn rest(&self, most: u64, stretches: usize) -> Vec<&[u8]> {
        let (mut left, mut skip) = (most, self.at);
        let mut found = Vec::new();
        for part in self.push.parts.iter().skip(self.part) {
            if left == 0 || found.len() == stretches {
                break;
            }
            let rest = part.bytes().get(std::mem::take(&mut skip)..).unwrap_or_default();
            let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            if len > 0 {
                found.push(&rest[..len]);
            }
        }
        found
    }

    pub fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        while let Some(part) = self.push.parts.get(self.part).filter(|part| self.at >= part.len()) {
            self.at -= part.len();
            self.part += 1;
        }
    }
}
