//! Arguments of calls: keys, sources, destinations and options.

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, KeepAlive, Part};
use pagelith_layouts::key::ObjectKey;

/// One request of a cache controller (for example one prompt): objects used under it count as
/// equally recent, deeper pages before shallower ones. From `Store::begin_request`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestEpoch(#[doc(hidden)] pub u64);

/// Options of a batch: `Options::default().timeout(Duration::from_secs(1))`.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The request to which the batch belongs; by default each batch is its own request.
    pub request: Option<RequestEpoch>,
    /// Chain depth in pages of the batch's first key; deeper keys follow in order. Default 0.
    pub depth: u32,
    /// Longest duration of the batch; by default the configured `deadline_ms`.
    pub timeout: Option<Duration>,
    /// Longest wait of a put for room in a full arena before it returns `Busy`; by default until
    /// the timeout.
    pub wait: Option<Duration>,
    /// Tokens that the caller of a get recomputes in a second. Pages on SSD that a load would bring
    /// later are misses (`Slow`), if `read.page_tokens` says how many tokens a page has. 0, the
    /// default, stands for the rate of `read.prefill_tokens_per_s`.
    pub prefill_tokens_per_s: u64,
}

impl Options {
    /// Those of a call that may take so long.
    pub const fn within(timeout: Duration) -> Options {
        let (request, depth, wait, prefill_tokens_per_s) = (None, 0, None, 0);
        Options { request, depth, timeout: Some(timeout), wait, prefill_tokens_per_s }
    }

    /// With another request.
    pub fn request(self, request: impl Into<Option<RequestEpoch>>) -> Options {
        Options { request: request.into(), ..self }
    }

    /// With another chain depth.
    pub fn depth(self, depth: u32) -> Options {
        Options { depth, ..self }
    }

    /// With another longest duration; `None` is the configured one.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Options {
        Options { timeout: timeout.into(), ..self }
    }

    /// With another longest wait for room; `None` is until the timeout.
    pub fn wait(self, wait: impl Into<Option<Duration>>) -> Options {
        Options { wait: wait.into(), ..self }
    }

    /// With another rate at which the caller recomputes tokens; 0 is the configured one.
    pub fn prefill_tokens_per_s(self, prefill_tokens_per_s: u64) -> Options {
        Options { prefill_tokens_per_s, ..self }
    }
}

/// Bytes to be stored, in one or several pieces; their sum is the object's length, 1 byte to 128
/// MiB. Memory is owned, or borrowed under a guard, until the put is done.
#[derive(Debug)]
pub struct Source {
    #[doc(hidden)]
    pub parts: Vec<Part>,
}

impl Source {
    /// Store the bytes of `parts`, in order.
    #[doc(hidden)]
    pub fn of(parts: Vec<Part>) -> Source {
        Source { parts }
    }

    /// Store a buffer's bytes; the buffer is returned when the put is done.
    pub fn owned(buffer: AlignedBuf) -> Source {
        Source::of(vec![buffer.into_part()])
    }

    /// Store shared bytes.
    pub fn shared(bytes: Arc<[u8]>) -> Source {
        let (ptr, len) = (NonNull::from(&bytes[..]).cast(), bytes.len());
        let keep: KeepAlive = Arc::new(bytes);
        // SAFETY: the Arc that `keep` holds owns the bytes. They are initialised, and cannot be
        // written while a clone of the Arc exists.
        Source::of(vec![unsafe { Part::shared(ptr, len, Some(keep)) }])
    }

    /// Store the bytes of `pieces`, in order.
    ///
    /// # Safety
    /// Each (address, length) is initialised memory that stays valid and unwritten until the put is
    /// done; `keep`, dropped no earlier, may be what ensures it.
    pub unsafe fn borrowed(
        pieces: &[(NonNull<u8>, usize)],
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Source {
        let part = |&(ptr, len): &(NonNull<u8>, usize)| {
            // SAFETY: the caller's contract is the one that `Part::shared` requires.
            unsafe { Part::shared(ptr, len, keep.clone()) }
        };
        Source::of(pieces.iter().map(part).collect())
    }

    /// Sum of the pieces' lengths in bytes.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.len() as u64).sum()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer of [`Source::owned`].
    pub fn into_buffer(mut self) -> Option<AlignedBuf> {
        self.parts.pop().and_then(Part::into_buf)
    }
}

/// Memory for an object's bytes, in one or several pieces; their sum must be the length of the
/// object (or range). Memory is owned, or borrowed under a guard, until the get is done. Unless the
/// get is a hit, the contents of the pieces are then unspecified.
#[derive(Debug)]
pub struct Destination(#[doc(hidden)] pub Vec<Part>);

impl Destination {
    /// Fill a buffer, which is returned with the outcome.
    pub fn owned(buffer: AlignedBuf) -> Destination {
        Destination(vec![buffer.into_part()])
    }

    /// Fill `pieces`, in order. Pieces whose address and length are multiples of 4096 are read into
    /// without a copy.
    ///
    /// # Safety
    /// Each (address, length) is initialised memory that stays valid, and that nothing else reads
    /// or writes, until the get is done; `keep`, dropped no earlier, may be what ensures it.
    pub unsafe fn borrowed(
        pieces: &[(NonNull<u8>, usize)],
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Destination {
        let part = |&(ptr, len): &(NonNull<u8>, usize)| {
            // SAFETY: the caller's contract is the one that `Part::exclusive` requires.
            unsafe { Part::exclusive(ptr, len, keep.clone()) }
        };
        Destination(pieces.iter().map(part).collect())
    }

    /// Sum of the pieces' lengths in bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|p| p.len() as u64).sum()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces' bytes, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Part::bytes)
    }

    /// The buffer of [`Destination::owned`].
    pub fn into_buffer(mut self) -> Option<AlignedBuf> {
        self.0.pop().and_then(Part::into_buf)
    }
}

/// An object to be put.
#[derive(Debug)]
pub struct Put {
    /// Its key.
    pub key: ObjectKey,
    /// Its bytes.
    pub source: Source,
}

impl Put {
    /// Put these bytes.
    pub fn new(key: ObjectKey, source: Source) -> Put {
        Put { key, source }
    }
}

/// Objects of one page, put together: visible together or not at all, one unit of eviction and
/// reclaim. A group of one is a standalone object.
#[derive(Debug)]
pub struct PutGroup {
    /// The objects, all of one page, no key twice; in the order in which they are stored on SSD.
    pub objects: Vec<Put>,
    /// For objects of pools that a page need not have (a Mamba checkpoint, a sliding window): an
    /// object of the base group to which they are attached, of the same page. They are visible only
    /// while the base is. If the base is absent, they wait for it.
    pub base: Option<ObjectKey>,
}

impl PutGroup {
    /// A base group, or a standalone object.
    pub fn new(objects: Vec<Put>) -> PutGroup {
        PutGroup { objects, base: None }
    }

    /// Objects attached to the group of `base`.
    pub fn attached(base: ObjectKey, objects: Vec<Put>) -> PutGroup {
        PutGroup { objects, base: Some(base) }
    }
}

impl From<Put> for PutGroup {
    /// A standalone object.
    fn from(object: Put) -> PutGroup {
        PutGroup::new(vec![object])
    }
}

/// An object to be got.
#[derive(Debug)]
pub struct Get {
    /// Its key.
    pub key: ObjectKey,
    /// The byte range; `None` for all. A range is widened to whole checksum blocks internally.
    pub range: Option<Range<u64>>,
    /// Memory for its bytes.
    pub destination: Destination,
}

impl Get {
    /// Get the whole object.
    pub fn new(key: ObjectKey, destination: Destination) -> Get {
        Get { key, range: None, destination }
    }
}

/// An object to be put from memory borrowed for the call.
#[derive(Clone, Copy, Debug)]
pub struct PutSlice<'a> {
    /// Its key.
    pub key: ObjectKey,
    /// Its bytes, in pieces.
    pub pieces: &'a [&'a [u8]],
}

/// An object to be got into memory borrowed for the call.
#[derive(Debug)]
pub struct GetSlice<'a, 'b> {
    /// Its key.
    pub key: ObjectKey,
    /// The byte range; `None` for all.
    pub range: Option<Range<u64>>,
    /// The destination, in pieces.
    pub pieces: &'a mut [&'b mut [u8]],
}
