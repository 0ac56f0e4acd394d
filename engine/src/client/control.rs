//! Questions that have one answer.

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::request::Ask;

use super::instances::Instance;
use super::{Attached, STEP, STORE, is_unavailable};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::rpc::client::Caller;
use crate::rpc::connections::Desk;
use crate::rpc::pool::Standing;
use crate::rpc::remote_get::{Manner, no_link};
use crate::rpc::{Reply, Told};

impl Attached {
    /// Ask what has a number for an answer.
    pub(crate) fn number(&self, ask: &Ask<'_>, options: &Options) -> Result<u64> {
        match self.tell(ask, options)? {
            (Told::Number(number), _) => Ok(number),
            (Told::Flushed(_) | Told::Text(_) | Told::Bits(_) | Told::Events(_) | Told::Views(_), _) => {
                Err(no_link())
            }
        }
    }

    /// The answer, and which process gave it. If the link ends under the question, it is asked once more over a new one:
    /// every verb that is asked here has the same effect twice as once. A removal or clear is repeated only if the store ended
    /// the link: from one that stands still, the first could come to be done after what the caller puts next. What belongs to
    /// one link (pins, views, groups) is asked through the [`Keeper`](super::lease_connection::Keeper).
    pub(crate) fn tell(&self, ask: &Ask<'_>, options: &Options) -> Result<(Told, Instance)> {
        let manner = self.manner(options);
        self.with_desk(|desk| {
            let told = tell_once(&*self.clock, desk, ask, manner, &|| self.look());
            let has_ended = match ask {
                Ask::Remove(_) | Ask::Clear(_) => desk.lines.was_ended_by_peer(STORE),
                _ => desk.lines.has_ended(STORE),
            };
            if is_unavailable(&told) && has_ended && self.clock.now() < manner.deadline {
                return tell_once(&*self.clock, desk, ask, manner, &|| self.look());
            }
            told
        })
    }
}

/// Go on until `advance` says that all is over; `between` is done again and again meanwhile.
pub(crate) fn drive(
    clock: &dyn Clock,
    desk: &mut Desk,
    mut advance: impl FnMut(&mut Desk, Mono) -> bool,
    between: &dyn Fn(),
) {
    let mut now = clock.now();
    desk.poll(now);
    while !advance(desk, now) {
        between();
        desk.wait(clock.now(), STEP);
        now = clock.now();
    }
}

/// Why the store cannot be asked this over the link of `caller`.
fn lacks(caller: &Caller, ask: &Ask<'_>) -> Option<Error> {
    let (feature, detail) = match ask {
        Ask::Pin(..) | Ask::Unpin(_) | Ask::Lease(..) => {
            (Feature::Pins, "the store pins and leases nothing for other processes")
        }
        Ask::Begin(..) | Ask::Commit(_) | Ask::Abort(_) | Ask::Missing(_) => {
            (Feature::Begun, "the store lets no other process begin groups")
        }
        Ask::Events(_) => (Feature::Events, "the store tells nobody what comes and goes"),
        Ask::View(..) => (Feature::Views, "the store lets no other process look at its memory"),
        Ask::Prefetch(_) => (Feature::Prefetch, "the store reads nothing ahead for other processes"),
        _ => return None,
    };
    (!caller.has(feature)).then(|| Error::new(ErrorKind::Incompatible, detail))
}

/// Ask once: the answer, and which process gave it.
pub(crate) fn tell_once(
    clock: &dyn Clock,
    desk: &mut Desk,
    ask: &Ask<'_>,
    manner: Manner,
    between: &dyn Fn(),
) -> Result<(Told, Instance)> {
    let token = desk.token();
    let mut asked: Option<Result<Instance>> = None;
    let mut told = None;
    let advance = |desk: &mut Desk, now| match &asked {
        Some(Ok(_)) => {
            told = desk.take(token);
            told.is_some()
        }
        Some(Err(_)) => true,
        None => {
            asked = match desk.lines.standing(STORE, now) {
                Standing::Up(caller) if now < manner.deadline => match lacks(caller, ask) {
                    Some(error) => Some(Err(error)),
                    None => match caller.tell(token, ask, manner.terms(now, 0), manner.deadline) {
                        Ok(()) => Some(Ok(caller.peer_instance())),
                        Err(error) if error.kind == ErrorKind::Busy && caller.is_owed() => None,
                        Err(error) => Some(Err(error)),
                    },
                },
                Standing::Soon if now < manner.deadline => None,
                Standing::Up(_) | Standing::Soon | Standing::Down => Some(Err(no_link())),
            };
            asked.as_ref().is_some_and(Result::is_err)
        }
    };
    drive(clock, desk, advance, between);
    let instance = asked.unwrap_or_else(|| Err(no_link()))?;
    let told = match told {
        Some(Reply::Told(told)) => told,
        Some(Reply::Exists(_) | Reply::Get(_) | Reply::Put(_)) | None => Err(no_link()),
    };
    desk.note(STORE, is_unavailable(&told), clock.now());
    told.map(|told| (told, instance))
}
