//! The RDMA devices of a link: its data plane, and at the end of the link the time until no device
//! accesses its memory any more.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::Frame;
use pagelith_mutants::{self as mutant, Mutant};

use crate::link_error::LinkError;
use crate::rdma::{ClientPlane, Completed, DataPlane, ReadDone, ServerPlane, TakeDown, TakenDown};

/// Maximum time for which the drop of a link waits for a device. After that its memory is leaked.
const DROP_WAIT_MAX: Duration = Duration::from_secs(1);

/// The devices of a link; none if it has no RDMA.
pub(crate) struct LinkDevices {
    plane: Option<Box<DataPlane>>,
    ending: Option<Ending>,
    revoke_timeout: Duration,
}

/// The end of a link whose queue pairs are being taken down.
struct Ending {
    why: LinkError,
    take_down: TakeDown,
}

/// Result of a poll.
#[derive(Default)]
pub(crate) struct Polled {
    /// A client's report of the notices that it has polled.
    pub report: Option<Frame>,
    /// Work that a server's devices have completed.
    pub completed: Completed,
}

impl LinkDevices {
    /// The devices of a link with this data plane. Memory of cancelled operations waits for at most
    /// `revoke_timeout`.
    pub fn new(plane: Option<DataPlane>, revoke_timeout: Duration) -> LinkDevices {
        LinkDevices { plane: plane.map(Box::new), ending: None, revoke_timeout }
    }

    /// The data plane.
    pub fn plane(&mut self) -> Option<&mut DataPlane> {
        self.plane.as_deref_mut()
    }

    /// The client's end of it.
    pub fn client(&mut self) -> Option<&mut ClientPlane> {
        self.plane()?.client()
    }

    /// The server's end of it.
    pub fn server(&mut self) -> Option<&mut ServerPlane> {
        self.plane()?.server()
    }

    /// Whether the link has a data plane.
    pub fn has_plane(&self) -> bool {
        self.plane.is_some()
    }

    /// Whether the link is closed and waits for its devices.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether a device may access memory for an operation. While the queue pairs are being taken
    /// down, that may be any operation's.
    pub fn is_live(&self, op: OpId) -> bool {
        let is_live = self.is_ending() || self.plane.as_ref().is_some_and(|p| p.is_live(op));
        is_live && !mutant::on(Mutant::RdmaBackAtRetract)
    }

    /// Time until [`LinkDevices::poll`] or [`LinkDevices::ended`] must be called.
    pub fn due(&self, now: Mono) -> Option<Duration> {
        match &self.ending {
            Some(ending) => Some(ending.take_down.due()),
            None => self.plane.as_ref()?.retract_due(now, self.revoke_timeout),
        }
    }

    /// Descriptors to wait for: completions, and the end of queue pairs.
    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        let ending = self.ending.as_ref().and_then(|ending| ending.take_down.wake());
        self.plane.iter().flat_map(|plane| plane.wakes()).chain(ending).collect()
    }

    /// Make the next completion wake [`LinkDevices::wakes`]. True if there is work already.
    pub fn arm(&self) -> bool {
        let ended = |ending: &Ending| ending.take_down.result().is_some();
        self.plane.as_ref().is_some_and(|plane| plane.arm())
            || self.ending.as_ref().is_some_and(ended)
    }

    /// Handle completions.
    pub fn poll(&mut self) -> Result<Polled, LinkError> {
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(Polled::default()) };
        let (mut report, mut completed) = (None, Completed::default());
        match plane {
            DataPlane::Client(client) => report = client.poll()?,
            DataPlane::Server(server) => completed = server.poll()?,
        }
        Ok(Polled { report, completed })
    }

    /// An error if a cancelled operation has waited too long for the devices. This end may have
    /// polled late itself: so it is called after arrivals were counted.
    pub fn check_retracted(&self, now: Mono) -> Result<(), LinkError> {
        let Some(plane) = self.plane.as_deref() else { return Ok(()) };
        match plane.retract_due(now, self.revoke_timeout) {
            Some(due) if due.is_zero() && plane.has_stream_ended() => Err(LinkError::Disconnected),
            Some(due) if due.is_zero() => {
                let limit = self.revoke_timeout.as_millis();
                Err(LinkError::Revoked { limit_ms: u64::try_from(limit).unwrap_or(u64::MAX) })
            }
            _ => Ok(()),
        }
    }

    /// Retract the memory of an operation: nothing more is posted for it. Returns the READs that
    /// have ended by that.
    pub fn retract(&mut self, op: OpId) -> Vec<ReadDone> {
        self.plane().map(|plane| plane.retract(op)).unwrap_or_default()
    }

    /// Note that memory of a cancelled operation waits for the devices.
    pub fn note_retracted(&mut self, op: OpId, now: Mono) {
        self.plane().into_iter().for_each(|plane| plane.note_retracted(op, now));
    }

    /// Note that the byte stream has ended, while bytes are awaited.
    pub fn note_stream_ended(&mut self, now: Mono) {
        self.plane().into_iter().for_each(|plane| plane.note_stream_ended(now));
    }

    /// Begin the end of the link. Returns the reason if no device accesses its memory; otherwise
    /// [`LinkDevices::ended`] returns it.
    pub fn end(&mut self, why: LinkError) -> Option<LinkError> {
        let Some(plane) = self.plane.take() else { return Some(why) };
        let waits = plane.is_any_live() && !mutant::on(Mutant::RdmaBackAtEnd);
        let take_down = plane.take_down();
        if !waits {
            return Some(why);
        }
        self.ending = Some(Ending { why, take_down });
        None
    }

    /// The reason of the end once the queue pairs are down, and whether memory is leaked because
    /// they are not.
    pub fn ended(&mut self) -> Option<(LinkError, bool)> {
        let result = self.ending.as_ref()?.take_down.result()?;
        let ending = self.ending.take()?;
        Some((ending.why, result == TakenDown::Leaked))
    }

    /// Wait until no device accesses memory of a link that is dropped. False if one still does, so
    /// that the memory must be leaked.
    pub fn release(&mut self) -> bool {
        let plane = self.plane.take().filter(|plane| plane.is_any_live());
        let ending = self.ending.take().map(|ending| ending.take_down);
        let take_down = ending.or_else(|| Some(plane?.take_down()));
        take_down.is_none_or(|down| down.wait(DROP_WAIT_MAX) == TakenDown::Down)
    }
}
