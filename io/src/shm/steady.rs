//! What says that shown memory is as it was: whoever shows it notes a number in a word that both sides have, and takes it out
//! before the memory is anything else's. Who copied the bytes looks at the word behind the copy. As long as the number is
//! there, nobody was told that the memory is theirs again, so what was copied is what was shown.
//!
//! Invariants:
//! - A number is noted once, and never again on the same words: what was taken out does not come back.
//! - It is taken out before anything may be written to the memory, with a fence between the two, and looked at behind the copy, with
//!   another: whoever copied a byte that was written behind the one sees what happened before it.
//! - Nobody takes out the numbers of a process that was killed. Who looks asks whether it is there, too.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SharedMemory;

/// Numbers that are noted at a time, at most.
const WORDS: usize = 64;

enum Words {
    /// In memory of two processes, from this byte on.
    Shared(Arc<SharedMemory>, usize),
    /// Of two threads of one.
    Own(Box<[AtomicU64; WORDS]>),
}

impl Words {
    fn of(&self, number: u64) -> &AtomicU64 {
        let at = (number % WORDS as u64) as usize;
        match self {
            Words::Shared(memory, from) => {
                let cells: *const AtomicU8 = memory.cells(from + 8 * at, 8).as_ptr();
                // SAFETY: eight bytes inside of the mapping, as `cells` checked, at a multiple of eight: mappings begin at a page,
                // and the words at a multiple of 128. Atomics may change under a shared borrow.
                unsafe { &*cells.cast::<AtomicU64>() }
            }
            Words::Own(words) => &words[at],
        }
    }
}

/// How it is found out that the other process is there.
struct Lives {
    /// Can be read when it has ended.
    process: OwnedFd,
    /// Hangs up when it has closed its end.
    socket: Arc<OwnedFd>,
}

impl Lives {
    fn lives(&self) -> bool {
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::RDHUP);
        let mut fds =
            [PollFd::from_borrowed_fd(self.process.as_fd(), PollFlags::IN), of(self.socket.as_fd())];
        // Whoever cannot be asked is not there.
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }
}

/// The words of a link. Clones share them.
#[derive(Clone)]
pub struct SteadyWords {
    words: Arc<Words>,
    last: Arc<AtomicU64>,
    lives: Option<Arc<Lives>>,
}

impl SteadyWords {
    fn new(words: Words) -> SteadyWords {
        SteadyWords { words: Arc::new(words), last: Arc::default(), lives: None }
    }

    /// Words of two threads of one process.
    pub fn within() -> SteadyWords {
        SteadyWords::new(Words::Own(Box::new([const { AtomicU64::new(0) }; WORDS])))
    }

    pub(super) fn shared(memory: Arc<SharedMemory>, from: usize) -> SteadyWords {
        SteadyWords::new(Words::Shared(memory, from))
    }

    /// The same, whose numbers count as long as this process lives, as its `pidfd` tells, and has its end of `socket` open.
    #[must_use]
    pub fn watching(self, process: OwnedFd, socket: Arc<OwnedFd>) -> SteadyWords {
        SteadyWords { lives: Some(Arc::new(Lives { process, socket })), ..self }
    }

    /// What is shown from here on is as it is now, until the returned value is dropped. `None` if too much is.
    pub fn begin(&self) -> Option<Steady> {
        let free = |number: &u64| self.words.of(*number).load(Ordering::Relaxed) == 0;
        let last = self.last.load(Ordering::Relaxed);
        let number = (last + 1..=last + WORDS as u64).find(free)?;
        self.last.store(number, Ordering::Relaxed);
        self.words.of(number).store(number, Ordering::Relaxed);
        // Bytes that were written past the cache are not ordered by what orders others.
        fence(Ordering::SeqCst);
        Some(Steady { words: self.words.clone(), number })
    }

    /// What the other side says by this number.
    pub fn claim(&self, number: u64) -> Claim {
        Claim { words: self.words.clone(), lives: self.lives.clone(), number }
    }

    #[cfg(test)]
    fn word(&self, number: u64) -> &AtomicU64 {
        self.words.of(number)
    }
}

impl std::fmt::Debug for SteadyWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteadyWords").field("last", &self.last).finish_non_exhaustive()
    }
}

/// As long as it is there, what was shown under its number is as it was.
pub struct Steady {
    words: Arc<Words>,
    number: u64,
}

impl Steady {
    /// At least 1.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        self.words.of(self.number).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Steady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steady").field("number", &self.number).finish_non_exhaustive()
    }
}

/// That something is as it was when it was shown, which is to be asked behind the copy of it.
pub struct Claim {
    words: Arc<Words>,
    lives: Option<Arc<Lives>>,
    number: u64,
}

impl Claim {
    /// Whether what was copied before this call is what was shown.
    pub fn stands(&self) -> bool {
        // The bytes are no atomics: the strongest, so that no copy of them is made behind the look.
        fence(Ordering::SeqCst);
        let noted = self.words.of(self.number).load(Ordering::Relaxed) == self.number;
        noted && self.number != 0 && self.lives.as_ref().is_none_or(|lives| lives.lives())
    }
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::shm::{PAIR_MEMORY_BYTES, pair};

    #[test]
    fn a_claim_stands_until_what_it_is_of_is_over_and_never_again() {
        let words = SteadyWords::within();
        assert!(!words.claim(0).stands() && !words.claim(1).stands(), "nobody said so");
        let steady = words.begin().expect("a word");
        let claim = words.claim(steady.number());
        assert!(claim.stands() && !words.claim(steady.number() + WORDS as u64).stands());
        drop(steady);
        assert!(!claim.stands());
        // The same word, and another number.
        let all: Vec<Steady> = std::iter::from_fn(|| words.begin()).collect();
        assert_eq!(all.len(), WORDS);
        assert!(!claim.stands() && all.iter().all(|one| words.claim(one.number()).stands()));
        let free = all.into_iter().nth(7).map(|one| one.number());
        assert!(words.begin().is_some_and(|again| Some(again.number()) > free));
    }

    #[test]
    fn both_ends_of_a_ring_have_the_same_words_and_each_its_own() {
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let fd = rustix::io::dup(&memory).expect("another descriptor");
        let theirs = SharedMemory::of(fd, PAIR_MEMORY_BYTES).expect("as it was made");
        let ((out, _), (_, inward)) = (pair(memory, true), pair(theirs, false));
        let (ours, theirs) = (out.steady(), inward.steady());
        let one = ours.begin().expect("a word");
        let claim = theirs.claim(one.number());
        assert!(claim.stands());
        drop(one);
        assert!(!claim.stands());
        // Whatever the other process writes there.
        ours.word(5).store(u64::MAX, Ordering::Relaxed);
        assert!(!theirs.claim(5).stands());
    }

    #[test]
    fn what_a_process_said_that_was_killed_does_not_stand() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
        let pid = Pid::from_raw(child.id() as i32).expect("its number");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("a descriptor");
        let flags = SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        let words = SteadyWords::within();
        let watching = words.clone().watching(process, Arc::new(here));
        let steady = words.begin().expect("a word");
        let claim = watching.claim(steady.number());
        // Bytes that came and were not read are no end.
        rustix::io::write(&there, b"x").expect("written");
        assert!(claim.stands());
        child.kill().expect("killed");
        child.wait().expect("gone");
        assert!(!claim.stands(), "nobody took the number out");
    }

    #[test]
    fn what_was_said_over_a_socket_that_is_closed_does_not_stand() {
        let process = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("a descriptor");
        let flags = SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        let words = SteadyWords::within().watching(process, Arc::new(here));
        let steady = words.begin().expect("a word");
        let claim = words.claim(steady.number());
        assert!(claim.stands());
        drop(there);
        assert!(!claim.stands());
    }
}
