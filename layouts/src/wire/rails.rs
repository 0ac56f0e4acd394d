//! Rails of an RDMA link: the queue pairs that each end offers, one for each port that it uses.

use super::List;
use crate::error::FormatError;
use crate::format::{is_zero, read, structure};

structure! {
    /// Start of the body of a rails frame. `rails` rails follow, then a text that says why there is
    /// none.
    pub struct RailsHead = 16 {
        /// Number of rails, at most 16; 0 if the sender does not use RDMA on this connection.
        rails: u32,
        /// Length of the text, at most 512; zero if there are rails.
        text_bytes: u32,
        /// In a client's frame, the number of notices that each of its rails can receive before it
        /// reports them as polled, at least 2.
        notices: u32,
        /// Zero.
        reserved: u32,
    }
}

structure! {
    /// One rail.
    pub struct RailItem = 104 {
        /// Name of the sender's device, padded with zeros.
        device: [u8; 64],
        /// GID of the port.
        pub gid: [u8; 16],
        /// Number of the queue pair.
        pub queue_pair: u32,
        /// Number of the first packet that the sender sends on it; 24 bits.
        pub packet: u32,
        /// In a server's frame, the position of the client's rail that it is connected to, from 0.
        /// In a client's frame its own position.
        pub pair: u32,
        /// Local identifier of the port; 0 over Ethernet.
        pub lid: u16,
        /// Number of the port, at least 1.
        pub port: u8,
        /// 1 InfiniBand, 2 Ethernet.
        pub link_layer: u8,
        /// Code of the port's MTU, 1 to 5: 256 bytes and its doubles, up to 4096.
        pub mtu: u8,
        /// Number of READs in flight that the sender answers.
        pub reads: u8,
        /// Zero.
        reserved: [u8; 6],
    }
}

const WHAT: &str = "rails";
/// Maximum rails of one end.
pub const RAILS_MAX: usize = 16;
/// Maximum length in bytes of a text.
pub const TEXT_MAX: usize = 512;
/// Maximum length in bytes of the body of a rails frame.
pub const RAILS_BODY_MAX: usize = RailsHead::BYTES + RAILS_MAX * RailItem::BYTES + TEXT_MAX;
/// Numbers of packets have 24 bits.
const PACKET_MAX: u32 = 0x00ff_ffff;

/// The link layer InfiniBand.
pub const INFINIBAND: u8 = 1;
/// The link layer Ethernet.
pub const ETHERNET: u8 = 2;

impl RailItem {
    /// A rail of the device of this name, all else zero. Names longer than 64 bytes are truncated.
    pub fn of_device(name: &str) -> RailItem {
        let mut item: RailItem = bytemuck::Zeroable::zeroed();
        let mut end = name.len().min(item.device.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        item.device[..end].copy_from_slice(&name.as_bytes()[..end]);
        item
    }

    /// The device's name.
    pub fn device(&self) -> String {
        let end = self.device.iter().position(|byte| *byte == 0).unwrap_or(self.device.len());
        String::from_utf8_lossy(&self.device[..end]).into_owned()
    }
}

/// A decoded rails frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rails {
    /// The rails.
    pub rails: Vec<RailItem>,
    /// Notices that each rail of a client can receive before it reports them as polled.
    pub notices: u32,
    /// Why there is no rail. Written by the peer.
    pub text: String,
}

impl Rails {
    /// No rail, for this reason.
    pub fn none(reason: &str) -> Rails {
        Rails { rails: Vec::new(), notices: 0, text: reason.to_owned() }
    }

    /// The body of the frame; a text longer than [`TEXT_MAX`] is truncated, and rails after
    /// [`RAILS_MAX`] are omitted.
    pub fn encode(&self) -> Vec<u8> {
        let rails = &self.rails[..self.rails.len().min(RAILS_MAX)];
        let mut end = if rails.is_empty() { self.text.len().min(TEXT_MAX) } else { 0 };
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let head = RailsHead {
            rails: rails.len() as u32,
            text_bytes: end as u32,
            notices: self.notices,
            reserved: 0,
        };
        let text = &self.text.as_bytes()[..end];
        [bytemuck::bytes_of(&head), bytemuck::cast_slice(rails), text].concat()
    }

    /// Read the body of the frame.
    pub fn decode(body: &[u8]) -> Result<Rails, FormatError> {
        let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
        let Some(head) = read::<RailsHead>(body) else { return wrong("length", body.len() as u64) };
        let mut rest = &body[RailsHead::BYTES..];
        let list = List::<RailItem>::take(&mut rest, head.rails);
        let Some(list) = list.filter(|list| list.len() <= RAILS_MAX) else {
            return wrong("rails", head.rails.into());
        };
        if rest.len() as u64 != u64::from(head.text_bytes)
            || rest.len() > TEXT_MAX
            || !(rest.is_empty() || list.is_empty())
        {
            return wrong("text_bytes", head.text_bytes.into());
        }
        if head.reserved != 0 {
            return wrong("reserved", head.reserved.into());
        }
        let rails: Vec<RailItem> = list.iter().collect();
        rails.iter().try_for_each(check)?;
        let text =
            str::from_utf8(rest).map_err(|_| FormatError::field(WHAT, "text", "not UTF-8"))?;
        Ok(Rails { rails, notices: head.notices, text: text.to_owned() })
    }
}

fn check(item: &RailItem) -> Result<(), FormatError> {
    let name = item.device.iter().position(|byte| *byte == 0).unwrap_or(item.device.len());
    let checks = [
        ("device", name > 0 && is_zero(&item.device[name..])),
        ("device", str::from_utf8(&item.device[..name]).is_ok()),
        ("packet", item.packet <= PACKET_MAX),
        ("pair", (item.pair as usize) < RAILS_MAX),
        ("port", item.port > 0),
        ("link_layer", matches!(item.link_layer, INFINIBAND | ETHERNET)),
        ("mtu", (1..=5).contains(&item.mtu)),
        ("reserved", is_zero(&item.reserved)),
    ];
    match checks.into_iter().find(|(_, ok)| !ok) {
        Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
        None => Ok(()),
    }
}
