//! The header of every frame. It has its own checksum: a reader uses a length only after the header
//! is verified, and only up to a cap.

use super::{CONTROL_BODY_MAX, DATA_BODY_MAX, FrameKind, GREETING_BODY_MAX};
use crate::checksum::checksum64;
use crate::error::FormatError;
use crate::format::{read, structure};
use crate::ids::OpId;

structure! {
    /// Start of every frame; the body follows.
    pub struct FrameHead = 64 {
        /// `PLWF`.
        magic: [u8; 4],
        /// Agreed version; 1 until there is one.
        version: u16,
        /// 1 hello, 2 welcome, 3 refusal, 4 challenge, 5 proof, 6 request, 7 pull, 8 data, 9
        /// outcome, 10 cancel, 11 ping, 12 pong, 13 bye, 14 shown, 15 taken, 16 rails, 17 regions,
        /// 18 targets, 19 placed, 20 noticed.
        kind: u8,
        /// Zero.
        flags: u8,
        /// Operation, numbered by the client from 1; in a ping any value, in a pong that of the
        /// ping.
        op: u64,
        /// In data and placed: number of the item.
        item: u32,
        /// Length of the body.
        body_bytes: u32,
        /// In data and placed: first byte, from the start of the requested range.
        offset: u64,
        /// XXH3-64 of the body; zero in data, whose bytes have the block checksums of their outcome
        /// or request.
        body_checksum: u64,
        /// First 16 bytes of an HMAC-SHA-256, see the MAC of a frame.
        mac: [u8; 16],
        /// XXH3-64 of the 56 bytes before.
        checksum: u64,
    }
}

const WHAT: &str = "frame";
const MAGIC: [u8; 4] = *b"PLWF";
/// Bytes that the header's checksum covers.
const COVERED: usize = FrameHead::BYTES - 8;

/// A truncated HMAC-SHA-256.
pub type Mac = [u8; 16];

/// The fields of a header, except MAC and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadFacts {
    /// Protocol version.
    pub version: u16,
    /// Kind of frame.
    pub kind: FrameKind,
    /// Operation.
    pub op: OpId,
    /// Number of the item; 0 except in data and placed.
    pub item: u32,
    /// Position of the bytes in the item; 0 except in data and placed.
    pub offset: u64,
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// XXH3-64 of the body; 0 in data.
    pub body_checksum: u64,
}

impl HeadFacts {
    /// The header of a control frame with this body.
    pub fn control(version: u16, kind: FrameKind, op: OpId, body: &[u8]) -> HeadFacts {
        let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        HeadFacts {
            version,
            kind,
            op,
            item: 0,
            offset: 0,
            body_bytes,
            body_checksum: checksum64(body),
        }
    }

    /// The header of a data frame.
    pub fn data(version: u16, op: OpId, item: u32, offset: u64, body_bytes: u32) -> HeadFacts {
        HeadFacts { version, kind: FrameKind::Data, op, item, offset, body_bytes, body_checksum: 0 }
    }

    /// The header of a placed frame with this body.
    pub fn placed(version: u16, op: OpId, item: u32, offset: u64, body: &[u8]) -> HeadFacts {
        let facts = HeadFacts::control(version, FrameKind::Placed, op, body);
        HeadFacts { item, offset, ..facts }
    }

    /// Check a control frame's body against its head.
    pub fn check_body(&self, body: &[u8]) -> Result<(), FormatError> {
        let intact = u64::from(self.body_bytes) == body.len() as u64
            && checksum64(body) == self.body_checksum;
        if intact { Ok(()) } else { Err(FormatError::Checksum { structure: "frame body" }) }
    }
}

/// Encode a header; `mac` is zero without a session key.
pub fn encode(facts: &HeadFacts, mac: Mac) -> [u8; FrameHead::BYTES] {
    let mut head = FrameHead {
        magic: MAGIC,
        version: facts.version,
        kind: facts.kind as u8,
        flags: 0,
        op: facts.op.0,
        item: facts.item,
        body_bytes: facts.body_bytes,
        offset: facts.offset,
        body_checksum: facts.body_checksum,
        mac,
        checksum: 0,
    };
    head.checksum = checksum64(&bytemuck::bytes_of(&head)[..COVERED]);
    bytemuck::cast(head)
}

/// Read a header. `version` is the negotiated one, `None` before negotiation. Lengths are checked
/// against the fixed limits of the frame kind; the caller checks them against negotiated limits.
pub fn decode(
    bytes: &[u8; FrameHead::BYTES],
    version: Option<u16>,
) -> Result<(HeadFacts, Mac), FormatError> {
    let head: FrameHead = bytemuck::pod_read_unaligned(bytes);
    if head.magic != MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum64(&bytes[..COVERED]) != head.checksum {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    let kind = FrameKind::from_tag(head.kind)
        .ok_or_else(|| FormatError::field(WHAT, "kind", head.kind))?;
    let expected = if kind.is_greeting() { super::VERSION_GREETING } else { version.unwrap_or(0) };
    FormatError::same(WHAT, "version", head.version, expected)?;
    if head.flags != 0 {
        return Err(FormatError::field(WHAT, "flags", head.flags));
    }
    let facts = HeadFacts {
        version: head.version,
        kind,
        op: OpId(head.op),
        item: head.item,
        offset: head.offset,
        body_bytes: head.body_bytes,
        body_checksum: head.body_checksum,
    };
    check(&facts)?;
    Ok((facts, head.mac))
}

fn check(h: &HeadFacts) -> Result<(), FormatError> {
    let (least, most) = match h.kind {
        kind if kind.is_bare() => (0, 0),
        kind if kind.is_greeting() => (1, GREETING_BODY_MAX),
        FrameKind::Data => (1, DATA_BODY_MAX),
        _ => (1, CONTROL_BODY_MAX),
    };
    if !(least..=most).contains(&h.body_bytes) {
        return Err(FormatError::field(WHAT, "body_bytes", h.body_bytes));
    }
    let op_ok = match h.kind {
        FrameKind::Request
        | FrameKind::Pull
        | FrameKind::Data
        | FrameKind::Outcome
        | FrameKind::Cancel
        | FrameKind::Shown
        | FrameKind::Targets
        | FrameKind::Placed => h.op.0 != 0,
        FrameKind::Ping | FrameKind::Pong => true,
        FrameKind::Hello
        | FrameKind::Welcome
        | FrameKind::Refusal
        | FrameKind::Challenge
        | FrameKind::Proof
        | FrameKind::Bye => h.op.0 == 0,
        FrameKind::Taken | FrameKind::Rails | FrameKind::Regions | FrameKind::Noticed => {
            h.op.0 == 0
        }
    };
    if !op_ok {
        return Err(FormatError::field(WHAT, "op", h.op.0));
    }
    if h.kind == FrameKind::Data {
        if h.body_checksum != 0 {
            return Err(FormatError::field(WHAT, "body_checksum", h.body_checksum));
        }
        return h
            .offset
            .checked_add(h.body_bytes.into())
            .map(|_| ())
            .ok_or_else(|| FormatError::field(WHAT, "offset", h.offset));
    }
    if h.kind != FrameKind::Placed && (h.item, h.offset) != (0, 0) {
        return Err(FormatError::field(WHAT, "item", h.item));
    }
    Ok(())
}

/// Split a complete frame in `bytes` into header, MAC and body. For callers that have the whole
/// frame in memory; a link reads the header first.
pub fn split(bytes: &[u8], version: Option<u16>) -> Result<(HeadFacts, Mac, &[u8]), FormatError> {
    let short = |need: u64| FormatError::Short { structure: WHAT, need, have: bytes.len() as u64 };
    let head: [u8; FrameHead::BYTES] = read(bytes).ok_or_else(|| short(FrameHead::BYTES as u64))?;
    let (facts, mac) = decode(&head, version)?;
    let need = FrameHead::BYTES as u64 + u64::from(facts.body_bytes);
    let body = bytes
        .get(FrameHead::BYTES..)
        .and_then(|rest| rest.get(..facts.body_bytes as usize))
        .ok_or_else(|| short(need))?;
    if facts.kind != FrameKind::Data {
        facts.check_body(body)?;
    }
    Ok((facts, mac, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_header_round_trips() {
        let data = HeadFacts::data(1, OpId(7), 3, 4096, 5);
        assert_eq!(decode(&encode(&data, [9; 16]), Some(1)), Ok((data, [9; 16])));
        let control = HeadFacts::control(1, FrameKind::Request, OpId(7), b"body");
        assert_eq!(decode(&encode(&control, [0; 16]), Some(1)), Ok((control, [0; 16])));
        assert_eq!(control.check_body(b"body"), Ok(()));
        assert_eq!(
            control.check_body(b"bodY"),
            Err(FormatError::Checksum { structure: "frame body" })
        );
    }

    #[test]
    fn inconsistent_frame_header_is_refused_by_field() {
        let good = HeadFacts::control(1, FrameKind::Request, OpId(7), b"body");
        let data = HeadFacts::data(1, OpId(7), 3, 4096, 5);
        let cases = [
            (HeadFacts { op: OpId(0), ..good }, "op"),
            (HeadFacts { kind: FrameKind::Hello, ..good }, "op"),
            (HeadFacts { body_bytes: 0, ..good }, "body_bytes"),
            (HeadFacts { body_bytes: CONTROL_BODY_MAX + 1, ..good }, "body_bytes"),
            (HeadFacts { kind: FrameKind::Ping, ..good }, "body_bytes"),
            (
                HeadFacts {
                    kind: FrameKind::Proof,
                    op: OpId(0),
                    body_bytes: GREETING_BODY_MAX + 1,
                    ..good
                },
                "body_bytes",
            ),
            (HeadFacts { item: 1, ..good }, "item"),
            (HeadFacts { offset: 1, ..good }, "item"),
            (HeadFacts { version: 2, ..good }, "version"),
            (HeadFacts { body_bytes: DATA_BODY_MAX + 1, ..data }, "body_bytes"),
            (HeadFacts { body_checksum: 1, ..data }, "body_checksum"),
            (HeadFacts { offset: u64::MAX, ..data }, "offset"),
        ];
        for (facts, field) in cases {
            let refused = decode(&encode(&facts, [0; 16]), Some(1)).expect_err(field).to_string();
            assert!(refused.contains(&format!("field={field}")), "{field}: {refused}");
        }
        let before = decode(&encode(&good, [0; 16]), None).expect_err("no version was negotiated");
        assert!(before.to_string().contains("field=version"), "{before}");
    }

    #[test]
    fn split_returns_body_or_refuses_short_frame() {
        let facts = HeadFacts::control(1, FrameKind::Request, OpId(7), b"body");
        let mut frame = encode(&facts, [0; 16]).to_vec();
        frame.extend_from_slice(b"body and more");
        assert_eq!(split(&frame, Some(1)).map(|(_, _, body)| body), Ok(&b"body"[..]));
        for len in 0..68 {
            assert!(split(&frame[..len], Some(1)).is_err(), "len={len}");
        }
    }
}
