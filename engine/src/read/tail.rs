//! The tail of a caller's memory that is too short for an aligned read: a page of the reader
//! replaces it during the operation.

use pagelith_io::buffer::Part;

/// The part of a destination that is detached during an operation.
#[derive(Debug)]
pub(crate) struct UnalignedTail {
    /// The end of the last part, which is too short for an aligned read.
    end: Part,
    /// Whether that part also has an aligned front.
    has_front: bool,
    /// The rest of the page after the tail, kept to restore the page.
    rest: Part,
}

impl UnalignedTail {
    /// Append the caller's `last` part to `parts`, with its unaligned end replaced by the front of
    /// `page`, so that the parts from `first` on have `bytes` bytes in all.
    pub fn detach(
        parts: &mut Vec<Part>,
        first: usize,
        last: Part,
        page: Part,
        bytes: u64,
        align: usize,
    ) -> UnalignedTail {
        let keep = last.len() / align * align;
        let (whole, end) = last.split(keep);
        let has_front = !whole.is_empty();
        parts.extend(Some(whole).filter(|_| has_front));
        let short = bytes - parts[first..].iter().map(|p| p.len() as u64).sum::<u64>();
        let (front, rest) = page.split(short as usize);
        parts.push(front);
        UnalignedTail { end, has_front, rest }
    }

    /// Restore the caller's last part and return the page. Copies the tail only if the read has
    /// `arrived`: otherwise the page may hold bytes of another read.
    pub fn restore(self, parts: &mut Vec<Part>, arrived: bool) -> Option<Part> {
        let UnalignedTail { mut end, has_front, rest } = self;
        let page = parts.pop().and_then(|tail| {
            if let Some(target) = end.bytes_mut().filter(|_| arrived) {
                target.copy_from_slice(&tail.bytes()[..target.len()]);
            }
            tail.join(rest).ok()
        });
        // Without a front the end is a part of its own, possibly the only one.
        let joined = match parts.pop_if(|_| has_front) {
            Some(front) => front.join(end),
            None => Ok(end),
        };
        match joined {
            Ok(part) => parts.push(part),
            Err((front, end)) => parts.extend([front, end]),
        }
        page
    }
}
