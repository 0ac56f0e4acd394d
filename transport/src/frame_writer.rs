//! Encodes the frames of one end of a link.

use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{Frame, FrameHead, LinkRole};

use crate::auth::FrameMac;
use crate::link::Push;

/// Encodes frames: this end's role, and the negotiated limits.
pub(crate) struct FrameWriter {
    pub side: LinkRole,
    pub version: u16,
    pub control_bytes_max: u32,
    pub data_bytes_max: u32,
    pub mac: Option<FrameMac>,
}

impl FrameWriter {
    /// Append a control frame.
    pub fn control(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        let facts = HeadFacts::control(self.version, frame.kind, frame.op, &frame.body);
        out.extend_from_slice(&self.head(&facts, &frame.body));
        out.extend_from_slice(&frame.body);
    }

    /// Append the head of a data frame.
    pub fn data(&mut self, push: &Push, offset: u64, bytes: u32, out: &mut Vec<u8>) {
        let facts = HeadFacts::data(self.version, push.op, push.item, offset, bytes);
        out.extend_from_slice(&self.head(&facts, &[]));
    }

    /// Append a placed frame, for bytes of the push from an offset of its item on.
    pub fn placed(&mut self, push: &Push, offset: u64, body: &[u8], out: &mut Vec<u8>) {
        let facts = HeadFacts::placed(self.version, push.op, push.item, offset, body);
        out.extend_from_slice(&self.head(&facts, body));
        out.extend_from_slice(body);
    }

    fn head(&mut self, facts: &HeadFacts, body: &[u8]) -> [u8; FrameHead::BYTES] {
        let bare = head::encode(facts, [0; 16]);
        match &mut self.mac {
            Some(macs) => head::encode(facts, macs.next(&bare, body)),
            None => bare,
        }
    }
}
