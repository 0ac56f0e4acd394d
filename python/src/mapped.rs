//! Which addresses are memory of this process: a wrong one is an error then, where a look would end the process.
//!
//! The kernel lists them (`/proc/self/maps`), in a millisecond where an engine has two thousand mappings. So the list is kept, and read anew
//! only where an address is not in it: what was unmapped since is not noticed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// First address and one past the last.
type Span = (usize, usize);

/// What may be read, and what may be written: sorted, and joined where mappings meet.
#[derive(Default)]
struct Mapped {
    read: Vec<Span>,
    written: Vec<Span>,
}

/// Only looked at with the interpreter's lock held, and never while that is given up, as for a look at the kernel's list: so a fork finds it
/// free.
static MAPPED: Mutex<Mapped> = Mutex::new(Mapped { read: Vec::new(), written: Vec::new() });

/// Why memory cannot be read, or written.
pub fn problem(py: Python<'_>, address: usize, length: usize, written: bool) -> Option<&'static str> {
    if known().has(address, length, written) {
        return None;
    }
    // Without a list there is nothing to say against it.
    let list = py.detach(|| std::fs::read("/proc/self/maps").ok().map(|list| Mapped::of(&list)))?;
    let mut mapped = known();
    *mapped = list;
    if mapped.has(address, length, written) {
        None
    } else if mapped.has(address, length, false) {
        Some("this process may not write there")
    } else {
        Some("this process has no such memory (GPU memory is not in it)")
    }
}

fn known() -> MutexGuard<'static, Mapped> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapped {
    /// Of the kernel's list. A name in it is of any bytes but newlines.
    fn of(list: &[u8]) -> Mapped {
        let mut mapped = Mapped::default();
        for line in list.split(|byte| *byte == b'\n') {
            let Some((span, allowed)) = parsed(line) else { continue };
            for (spans, letter) in [(&mut mapped.read, 'r'), (&mut mapped.written, 'w')] {
                match spans.last_mut() {
                    _ if !allowed.contains(letter) => {}
                    Some(last) if last.1 == span.0 => last.1 = span.1,
                    _ => spans.push(span),
                }
            }
        }
        mapped
    }

    fn has(&self, address: usize, length: usize, written: bool) -> bool {
        let spans = if written { &self.written } else { &self.read };
        let after = spans.partition_point(|span| span.0 <= address);
        after
            .checked_sub(1)
            .is_some_and(|at| address.checked_add(length).is_some_and(|end| end <= spans[at].1))
    }
}

/// A line's addresses, and what is allowed there.
fn parsed(line: &[u8]) -> Option<(Span, &str)> {
    let mut words = line.split(|byte| *byte == b' ').map_while(|word| std::str::from_utf8(word).ok());
    let (from, to) = words.next()?.split_once('-')?;
    let span = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
    Some((span, words.next()?))
}
