//! Work requests of a send queue.

use super::abi;
use super::memory::{LocalPiece, RemotePiece};

/// A request of the send queue.
#[derive(Clone, Copy)]
pub struct SendRequest<'a> {
    /// The number that its completion has.
    pub id: u64,
    /// Whether it completes if it succeeds. A failed request always does.
    pub signaled: bool,
    /// The operation.
    pub operation: Operation<'a>,
}

/// An operation of the send queue.
#[derive(Clone, Copy)]
pub enum Operation<'a> {
    /// Write the pieces, one after the other, to the peer's memory.
    Write {
        /// The bytes.
        from: &'a [LocalPiece],
        /// Where they go.
        to: RemotePiece,
    },
    /// Write, then complete one receive of the peer. Without pieces it writes nothing, and the
    /// address is not used.
    WriteWithNotice {
        /// The bytes.
        from: &'a [LocalPiece],
        /// Where they go.
        to: RemotePiece,
        /// The value that the peer's completion has.
        immediate: u32,
    },
    /// Read the peer's memory into the pieces, one after the other.
    Read {
        /// Where the bytes go.
        to: &'a [LocalPiece],
        /// The bytes.
        from: RemotePiece,
    },
    /// Send the pieces to the peer's next receive.
    Send {
        /// The bytes.
        from: &'a [LocalPiece],
    },
}

impl SendRequest<'_> {
    pub(super) fn raw(&self) -> abi::SendWr {
        use abi::opcode;
        let nothing = RemotePiece { address: 0, key: 0 };
        let (opcode, pieces, remote, immediate) = match self.operation {
            Operation::Write { from, to } => (opcode::WRITE, from, to, 0),
            Operation::WriteWithNotice { from, to, immediate } => {
                (opcode::WRITE_WITH_IMM, from, to, immediate)
            }
            Operation::Read { to, from } => (opcode::READ, to, from, 0),
            Operation::Send { from } => (opcode::SEND, from, nothing, 0),
        };
        let (sg_list, num_sge) = raw_list(pieces);
        abi::SendWr {
            wr_id: self.id,
            sg_list,
            num_sge,
            opcode,
            send_flags: if self.signaled { abi::send_flag::SIGNALED } else { 0 },
            imm_data: immediate.to_be(),
            remote_addr: remote.address,
            rkey: remote.key,
            ..abi::SendWr::default()
        }
    }
}

/// A scatter list as C has it. The provider only reads it.
pub(super) fn raw_list(pieces: &[LocalPiece]) -> (*mut abi::Sge, i32) {
    let list = pieces.as_ptr().cast::<abi::Sge>().cast_mut();
    (list, i32::try_from(pieces.len()).unwrap_or(i32::MAX))
}
