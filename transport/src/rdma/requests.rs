//! The requests that move bytes between memory of this process and memory of a peer: scattered on
//! both sides, and cut at the edges of registered chunks.

use std::sync::Arc;

use pagelith_io::verbs::{LocalPiece, RemotePiece, VerbsError};

use super::region::RdmaRegion;

/// Bytes that are contiguous in a region of this process.
#[derive(Clone, Debug)]
pub(crate) struct LocalRange {
    pub region: Arc<RdmaRegion>,
    pub at: u64,
    pub length: u64,
}

/// Bytes that are contiguous in the peer's memory, and have one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    pub start: RemotePiece,
    pub length: u64,
}

/// A WRITE or a READ.
pub(crate) struct PlannedRequest {
    /// Pieces of this process, in order.
    pub local: Vec<LocalPiece>,
    /// Where the peer's bytes begin.
    pub remote: RemotePiece,
    /// Length in bytes.
    pub bytes: u64,
}

/// Requests for the bytes of `local` and `remote`, which correspond in order. At most
/// `requests_max` requests of at most `pieces_max` pieces; they cover as many bytes from the start
/// as fit.
pub(crate) fn plan(
    rail: usize,
    local: &[LocalRange],
    remote: impl Iterator<Item = RemoteRange>,
    (requests_max, pieces_max): (usize, usize),
) -> Result<Vec<PlannedRequest>, VerbsError> {
    let mut requests = Vec::new();
    let (mut at, mut skip) = (0, 0);
    for range in remote {
        let mut done = 0;
        while done < range.length {
            if at == local.len() || requests.len() == requests_max {
                return Ok(requests);
            }
            let remote = RemotePiece { address: range.start.address + done, ..range.start };
            let mut request = PlannedRequest { local: Vec::new(), remote, bytes: 0 };
            while done + request.bytes < range.length
                && request.local.len() < pieces_max
                && let Some(from) = local.get(at)
            {
                let offset = from.at + skip;
                let chunk_left = chunk_left(&from.region, offset);
                let wanted = range.length - done - request.bytes;
                let length = wanted.min(from.length - skip).min(chunk_left);
                from.region.local(rail, to_usize(offset), to_usize(length), &mut request.local)?;
                request.bytes += length;
                skip += length;
                if skip == from.length {
                    (at, skip) = (at + 1, 0);
                }
            }
            done += request.bytes;
            requests.push(request);
        }
    }
    Ok(requests)
}

/// Bytes from an offset to the end of its chunk.
fn chunk_left(region: &RdmaRegion, at: u64) -> u64 {
    let chunk = region.chunk_bytes().max(1);
    chunk - at % chunk
}

/// Offsets in memory of this process fit a usize.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
