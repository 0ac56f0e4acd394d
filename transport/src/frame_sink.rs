//! Where received frames and bytes go.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::HeadFacts;
use pagelith_layouts::wire::placement::PlacedBody;
use pagelith_layouts::wire::shm_ref::{self, ItemRange, Released, ShmRefBody};
use pagelith_layouts::wire::{Frame, FrameKind};

use crate::exposures::Exposures;
use crate::link::{LinkCounters, LinkEvent};
use crate::link_error::LinkError;
use crate::rdma::{DataPlane, ServerPlane};
use crate::shown::LinkRegions;

/// Destinations of received frames and bytes.
pub(crate) struct FrameSink<'a> {
    pub exposures: &'a mut Exposures,
    /// Events for the link's user.
    pub events: &'a mut Vec<LinkEvent>,
    /// Frames for the link itself: pings, pongs and goodbyes.
    pub own: &'a mut Vec<Frame>,
    pub regions: &'a LinkRegions,
    /// Ranges that this end passed by reference and the peer has released.
    pub released: &'a mut Vec<Released>,
    /// Ranges that the peer passed by reference and this end no longer reads.
    pub to_release: &'a mut Vec<Released>,
    pub data: Option<&'a mut DataPlane>,
    pub counts: &'a mut LinkCounters,
}

impl FrameSink<'_> {
    /// Receive a reference to bytes: an event if it covers a whole exposed range, else a copy.
    pub fn receive_ref(&mut self, op: OpId, body: &[u8]) -> Result<(), LinkError> {
        let body = shm_ref::decode(body)?;
        let range = (op, body.item, body.offset);
        if let Some(server) = self.data.as_deref_mut().and_then(DataPlane::server) {
            let taken = read_shown(server, self.exposures, range, &body)?;
            if taken.is_none() {
                self.counts.bytes_late += body.length;
            }
            self.to_release.extend(match taken {
                Some(true) => None,
                Some(false) => Some(Released { range, unread: true }),
                None => Some(Released { range, unread: false }),
            });
            return Ok(());
        }
        let found = self.regions.shown(range, body.pieces.iter());
        let found = found.ok_or_else(|| {
            LinkError::violation("a reference names memory that was not handed over")
        })?;
        let length =
            u32::try_from(body.length).map_err(|_| LinkError::bad_field("shown", body.length))?;
        let Some(key) = self.exposures.locate(op, body.item, body.offset, length)? else {
            self.counts.bytes_late += body.length;
            self.to_release.push(Released { range, unread: false });
            return Ok(());
        };
        self.counts.bytes_in += body.length;
        let (_, item, offset) = range;
        let untouched =
            if key == range { self.exposures.take_untouched(key, body.length) } else { None };
        if let Some(parts) = untouched {
            self.events.push(LinkEvent::ReceivedRef { op, item, offset, parts, shown: found });
            return Ok(());
        }
        // Only a piece of an exposed range: it is copied as if it had been sent.
        self.exposures.fill(key, body.length, |from, to| found.copy_out(from, to));
        self.events.extend(self.exposures.take_complete(key));
        self.to_release.push(Released { range, unread: false });
        Ok(())
    }

    /// Receive bytes that the peer's device has written; false if they have not landed yet.
    pub fn receive_placed(
        &mut self,
        facts: &HeadFacts,
        placed: &PlacedBody,
    ) -> Result<bool, LinkError> {
        let client = self.data.as_deref_mut().and_then(DataPlane::client);
        let client =
            client.ok_or_else(|| LinkError::violation("a frame of RDMA on a link without it"))?;
        if !client.has_landed(facts.op, placed)? {
            return Ok(false);
        }
        let length = u64::from(placed.length);
        let found = self.exposures.locate(facts.op, facts.item, facts.offset, placed.length)?;
        let Some(key) = found else {
            // The operation was cancelled: the memory waits for its outcome.
            self.counts.bytes_late += length;
            return Ok(true);
        };
        client.note_placed(length);
        self.counts.bytes_in += length;
        self.counts.bytes_by_rdma += length;
        self.exposures.advance(key, placed.length as usize);
        self.events.extend(self.exposures.take_complete(key));
        Ok(true)
    }

    /// Receive a frame for the data plane of a server.
    pub fn receive_for_server(&mut self, facts: &HeadFacts, body: &[u8]) -> Result<(), LinkError> {
        let server = self.data.as_deref_mut().and_then(DataPlane::server);
        let server =
            server.ok_or_else(|| LinkError::violation("a frame of RDMA on a link without it"))?;
        match facts.kind {
            FrameKind::Regions => server.receive_regions(body),
            FrameKind::Targets => server.receive_targets(facts.op, body),
            _ => server.receive_noticed(body),
        }
    }

    /// A request has arrived: its number must be free, also of READs for a cancelled operation.
    pub fn check_number(&self, op: OpId) -> Result<(), LinkError> {
        match self.exposures.holds(op) {
            true => Err(LinkError::violation(format_args!(
                "a request has the number of a cancelled operation whose memory is still read op={}",
                op.0
            ))),
            false => Ok(()),
        }
    }

    /// An outcome has arrived: the peer's device writes nothing more for its operation.
    pub fn end_remote_access(&mut self, op: OpId) {
        if let Some(client) = self.data.as_deref_mut().and_then(DataPlane::client) {
            client.end_remote_access(op);
            self.exposures.release(op, self.events);
        }
    }
}

/// Begin to read what the client shows into the memory exposed for it. `None` if none is, and false
/// if that memory is not registered.
fn read_shown(
    server: &mut ServerPlane,
    exposures: &mut Exposures,
    range: ItemRange,
    shown: &ShmRefBody<'_>,
) -> Result<Option<bool>, LinkError> {
    let (op, item, offset) = range;
    let length =
        u32::try_from(shown.length).map_err(|_| LinkError::bad_field("shown", shown.length))?;
    let Some(key) = exposures.locate(op, item, offset, length)? else { return Ok(None) };
    let memory = exposures.next_addresses(key, shown.length);
    let begun = server.begin_read(key, range, shown, &memory)?;
    if begun {
        exposures.begin_read(key, shown.length);
        server.post_reads()?;
    }
    Ok(Some(begun))
}
