//! The result of a handshake, and the frames that follow it before the link is ready.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{FrameHead, FrameKind};

use crate::auth::FrameMac;
use crate::capability::NegotiatedCapabilities;
use crate::link_error::LinkError;
use crate::link_permits::LinkPermit;
use crate::rights::Rights;

/// The result of a successful handshake.
pub(crate) struct HandshakeOutcome {
    pub common: NegotiatedCapabilities,
    pub rights: Rights,
    pub key_name: Option<String>,
    /// MACs of the frames sent and received; `None` without a key.
    pub macs: Option<(FrameMac, FrameMac)>,
    /// Held at a server that bounds its links.
    pub permit: Option<LinkPermit>,
}

impl HandshakeOutcome {
    /// Append a control frame, which is the next one that this end sends.
    pub fn append_frame(&mut self, kind: FrameKind, body: &[u8], out: &mut Vec<u8>) {
        let facts = HeadFacts::control(self.common.version, kind, OpId(0), body);
        let bare = head::encode(&facts, [0; 16]);
        let head = match &mut self.macs {
            Some((sends, _)) => head::encode(&facts, sends.next(&bare, body)),
            None => bare,
        };
        out.extend_from_slice(&head);
        out.extend_from_slice(body);
    }

    /// Length of the received frame, of which the head is complete. It must be of this kind, and
    /// its body not longer.
    pub fn frame_bytes(
        &self,
        received: &[u8],
        kind: FrameKind,
        body_bytes_max: usize,
    ) -> Result<usize, LinkError> {
        let Some(bytes) = received.first_chunk() else { return Ok(FrameHead::BYTES) };
        let (facts, _) = head::decode(bytes, Some(self.common.version))?;
        if facts.kind != kind {
            return Err(LinkError::bad_field("kind", format_args!("{:?}", facts.kind)));
        }
        if facts.body_bytes as usize > body_bytes_max {
            return Err(LinkError::bad_field("body_bytes", facts.body_bytes));
        }
        Ok(FrameHead::BYTES + facts.body_bytes as usize)
    }

    /// The body of a whole frame, which is the next one of the peer.
    pub fn frame_body<'a>(&mut self, frame: &'a [u8]) -> Result<&'a [u8], LinkError> {
        let (_, mac, body) = head::split(frame, Some(self.common.version))?;
        match (&mut self.macs, frame.first_chunk()) {
            (Some((_, reads)), Some(head)) => reads.check(head, body, &mac)?,
            _ if mac == [0; 16] => {}
            _ => return Err(LinkError::violation("a frame has a MAC, and the link has no key")),
        }
        Ok(body)
    }

    /// The outcome where peers have no key.
    pub fn without_key(common: NegotiatedCapabilities, rights: Rights) -> HandshakeOutcome {
        HandshakeOutcome { common, rights, key_name: None, macs: None, permit: None }
    }
}
