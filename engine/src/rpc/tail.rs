//! The end of a caller's memory that is too short to be read into: a page of the reader's stands in for it while it is away.

use pagelith_io::buffer::Part;

/// The caller's memory of one object while it is away in an operation.
#[derive(Debug)]
pub(crate) struct Ragged {
    /// The end of the last part that is too short to be read into.
    end: Part,
    /// Whether that part has a front that is read into.
    has_front: bool,
    /// What the read leaves of the page that the end is read into, to make it whole again.
    rest: Part,
}

impl Ragged {
    /// Add the caller's `last` part to `parts`, its ragged end replaced by the front of `page`, so that those from `first`
    /// on are `bytes` long.
    pub fn cut(
        parts: &mut Vec<Part>,
        first: usize,
        last: Part,
        page: Part,
        bytes: u64,
        align: usize,
    ) -> Ragged {
        let keep = last.len() / align * align;
        let (whole, end) = last.split(keep);
        let has_front = !whole.is_empty();
        parts.extend(Some(whole).filter(|_| has_front));
        let short = bytes - parts[first..].iter().map(|p| p.len() as u64).sum::<u64>();
        let (front, rest) = page.split(short as usize);
        parts.push(front);
        Ragged { end, has_front, rest }
    }

    /// Make the caller's last part whole again, with its end if that `arrived`: else the page may hold what somebody else
    /// read. The page.
    pub fn put_back(self, parts: &mut Vec<Part>, arrived: bool) -> Option<Part> {
        let Ragged { mut end, has_front, rest } = self;
        let page = parts.pop().and_then(|tail| {
            if let Some(target) = end.bytes_mut().filter(|_| arrived) {
                target.copy_from_slice(&tail.bytes()[..target.len()]);
            }
            tail.join(rest).ok()
        });
        // Without a front the end is a part of its own, perhaps the only one.
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
