//! What lies where in memory that a process shows, by key, in memory that it shows too: who looks at both finds an object, copies it, and
//! knows behind the copy whether it was there all the while. Nobody is asked, and who owns the memory does not hear of it.
//!
//! Each object that is posted has a row: a version, and what is said of it. A version is odd as long as the row stands. That is a sequence lock a
//! row (H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012), whose readers read the object's bytes, too, as
//! FaRM's do over a network (A. Dragojević et al., NSDI 2014). Rows are found by buckets of eight cells, one line of the cache; what has no place
//! in its bucket, or no row, is not posted: a catalog need not have everything, and who finds nothing there asks.
//!
//! Invariants:
//! - One writer. A row's version is never again what it was.
//! - A row is withdrawn before the bytes that it names are anything else's, with [`Catalog::settle`] between the two. So who finds the version behind a copy as it was
//!   before has copied what was posted.
//! - Who looks believes nothing that it read of a row before the version is as it was, and reads nothing outside of the memory whatever it says.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, block_count, key_hash};
use pagelith_layouts::key::ObjectKey;
use rustix::io::Errno;

use super::region::{Region, View};
use crate::huge::table;
use crate::prefetch;

/// What the memory begins with; the last byte is the version of how it is laid out.
const MAGIC: u64 = u64::from_le_bytes(*b"pagecat\x01");
/// Words of the head, before the cells.
const HEAD_WORDS: usize = 512;
/// Cells of a bucket: a line of the cache.
const BUCKET: usize = 8;
/// Words of a row: three lines of the cache.
const ROW_WORDS: usize = 24;
/// Where in a row its words are: the version, the length in bytes, the place, the key.
const VERSION: usize = 0;
const LENGTH: usize = 1;
const PLACE: usize = 2;
const KEY: usize = 3;
const KEY_WORDS: usize = ObjectKey::BYTES / 8;
/// The checksums of the first blocks.
const SUMS: usize = KEY + KEY_WORDS;
const SUMS_IN_ROW: usize = (ROW_WORDS - SUMS) / 2;
/// What places are multiples of, in bytes. The checksums of further blocks lie by the object's place.
const PAGE: u64 = 4096;
/// Nothing, in a chain of rows.
const NONE: u32 = u32::MAX;
/// Keys that are looked for side by side, so that their misses of the cache are under way together.
const TOGETHER: usize = 16;

/// Where in the memory what is: all of it follows from how much memory is shown, and how many rows there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// A power of two.
    buckets: usize,
    rows: usize,
    pages: usize,
}

impl Shape {
    fn of(rows: usize, bytes: u64) -> Option<Shape> {
        // Half of the cells are empty: that a bucket has no place is rare.
        let buckets = rows.checked_mul(2)?.div_ceil(BUCKET).checked_next_power_of_two()?;
        let (rows, pages) = (u32::try_from(rows).ok()? as usize, usize::try_from(bytes / PAGE).ok()?);
        (rows > 0 && rows < NONE as usize && pages > 0).then_some(Shape { buckets, rows, pages })
    }

    fn first_row(&self) -> usize {
        HEAD_WORDS + self.buckets * BUCKET
    }

    fn first_sum(&self) -> usize {
        self.first_row() + self.rows * ROW_WORDS
    }

    fn words(&self) -> Option<usize> {
        let rows = self.rows.checked_mul(ROW_WORDS)?;
        let cells = self.buckets.checked_mul(BUCKET)?;
        HEAD_WORDS.checked_add(cells)?.checked_add(rows)?.checked_add(self.pages.checked_mul(2)?)
    }

    /// The first cell of a key's bucket, and its tag there.
    fn home(&self, key: &ObjectKey) -> (usize, u64) {
        let hash = u128::from_le_bytes(key_hash(key));
        let bucket = (hash as u64) as usize & (self.buckets - 1);
        (HEAD_WORDS + bucket * BUCKET, (hash >> 96) as u64)
    }

    fn row(&self, row: usize) -> usize {
        self.first_row() + row * ROW_WORDS
    }

    /// Where the checksum of an object's block is; `None` if no such object fits into the memory.
    fn sum(&self, row: usize, place: u64, block: usize) -> Option<usize> {
        if block < SUMS_IN_ROW {
            return Some(self.row(row) + SUMS + 2 * block);
        }
        let page = usize::try_from(place / PAGE).ok()?.checked_add(block)?;
        (page < self.pages).then(|| self.first_sum() + 2 * page)
    }
}

/// An object of which it is told where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Posted<'a> {
    /// Its name.
    pub key: &'a ObjectKey,
    /// Where it begins in the memory that is shown, a multiple of 4096.
    pub place: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The checksums of its blocks.
    pub sums: &'a [Checksum],
}

/// A catalog, to be written. What is posted belongs to an owner, by a number, and is withdrawn with it.
#[derive(Debug)]
pub struct Catalog {
    region: Arc<Region>,
    shape: Shape,
    /// Of each row that was ever used, its cell and the next of its owner's.
    links: Vec<(u32, u32)>,
    /// The first row of each owner.
    first: Vec<u32>,
    free: Vec<u32>,
    /// Something was withdrawn that is not settled.
    withdrawn: bool,
}

impl Catalog {
    /// An empty one of at most `rows` objects in `bytes` bytes of memory. Fails if the system has no memory for it.
    pub fn new(rows: usize, bytes: u64) -> std::io::Result<Catalog> {
        let shape = Shape::of(rows, bytes).ok_or(Errno::INVAL)?;
        let length = shape.words().and_then(|words| words.checked_mul(8)).ok_or(Errno::NOMEM)?;
        let region = Arc::new(Region::new(length)?);
        // Owners have a page of the memory each, at least. None of these grows while somebody waits.
        let (links, first, free) = (table(shape.rows), table(shape.pages), table(shape.rows));
        let catalog = Catalog { region, shape, links, first, free, withdrawn: false };
        let head = [MAGIC, shape.rows as u64, bytes];
        head.iter().zip(catalog.words()).for_each(|(value, word)| word.store(*value, Relaxed));
        Ok(catalog)
    }

    /// Bytes that one takes at most, once all of it is used; what is beside the memory that is shown among them.
    pub fn bytes_for(rows: u64, bytes: u64) -> u64 {
        let Some(shape) = usize::try_from(rows).ok().and_then(|rows| Shape::of(rows, bytes)) else {
            return 0;
        };
        let own = shape.rows * (size_of::<(u32, u32)>() + size_of::<u32>()) + shape.pages * size_of::<u32>();
        let shown = shape.words().and_then(|words| words.checked_mul(8));
        shown.and_then(|shown| shown.checked_add(own)).map_or(u64::MAX, |all| all as u64)
    }

    /// The memory, to be shown.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn words(&self) -> &[AtomicU64] {
        let words: *const AtomicU64 = self.region.base().cast_const().cast();
        // SAFETY: so many words were mapped, zeroed, for as long as the region is there, which `self` keeps; a mapping begins at a page. They are
        // atomics, which may change under a shared borrow.
        unsafe { std::slice::from_raw_parts(words, self.region.len() / 8) }
    }

    /// Starts bringing into the cache what posting these, in this order, writes to. Changes nothing.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a ObjectKey>) {
        let words = self.words();
        for (key, row) in keys.zip(self.free.iter().rev()) {
            let (cells, _) = self.shape.home(key);
            prefetch::line_to_write(&words[cells]);
            let at = self.shape.row(*row as usize);
            words[at..at + ROW_WORDS].chunks(BUCKET).for_each(|line| prefetch::line_to_write(&line[0]));
        }
    }

    /// Tell where an object of `owner`'s lies; false if there is no place for it, and it is not told of.
    pub fn post(&mut self, owner: u32, posted: &Posted<'_>) -> bool {
        let (shape, (cells, tag)) = (self.shape, self.shape.home(posted.key));
        let blocks = block_count(posted.length, BLOCK_BYTES);
        let fits = posted.sums.len() as u64 == blocks && posted.place.is_multiple_of(PAGE);
        let Some(cell) = (cells..cells + BUCKET).find(|cell| self.words()[*cell].load(Relaxed) == 0) else {
            return false;
        };
        // In which row does not matter: what does not fit into one lies by the object's place.
        let last = posted.sums.len().saturating_sub(1);
        if !fits || shape.sum(0, posted.place, last).is_none() {
            return false;
        }
        let Some(row) = self.free.pop().or_else(|| self.fresh()) else { return false };
        let (at, words) = (shape.row(row as usize), self.words());
        let version = words[at + VERSION].load(Relaxed);
        // Behind the withdrawal that made the version even: who reads what is written next sees that it is.
        fence(Release);
        words[at + LENGTH].store(posted.length, Relaxed);
        words[at + PLACE].store(posted.place, Relaxed);
        let key = &words[at + KEY..at + KEY + KEY_WORDS];
        key.iter().zip(key_words(posted.key)).for_each(|(word, value)| word.store(value, Relaxed));
        for (block, sum) in posted.sums.iter().enumerate() {
            if let Some(at) = shape.sum(row as usize, posted.place, block) {
                let sum = u128::from_le_bytes(*sum);
                words[at].store(sum as u64, Relaxed);
                words[at + 1].store((sum >> 64) as u64, Relaxed);
            }
        }
        words[at + VERSION].store(version + 1, Release);
        words[cell].store(tag << 32 | u64::from(row + 1), Release);
        let owner = owner as usize;
        if self.first.len() <= owner {
            self.first.resize(owner + 1, NONE);
        }
        self.links[row as usize] = (cell as u32, std::mem::replace(&mut self.first[owner], row));
        true
    }

    /// A row that was never used.
    fn fresh(&mut self) -> Option<u32> {
        let row = self.links.len();
        (row < self.shape.rows).then(|| self.links.push((0, NONE)))?;
        Some(row as u32)
    }

    /// Nothing of `owner`'s is where it was from here on. Before its memory is anything else's, [`settle`](Catalog::settle).
    pub fn withdraw(&mut self, owner: u32) {
        let Some(first) = self.first.get_mut(owner as usize) else { return };
        let mut row = std::mem::replace(first, NONE);
        while row != NONE {
            let (cell, next) = self.links[row as usize];
            let words = self.words();
            let version = &words[self.shape.row(row as usize) + VERSION];
            version.store(version.load(Relaxed) + 1, Relaxed);
            words[cell as usize].store(0, Relaxed);
            self.free.push(row);
            self.withdrawn = true;
            row = next;
        }
    }

    /// What was withdrawn is seen to be by everybody who sees what is written from here on, also past the cache.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.withdrawn) {
            fence(SeqCst);
        }
    }
}

fn key_words(key: &ObjectKey) -> impl Iterator<Item = u64> {
    key.as_bytes().chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|at| word[at])))
}

/// Where an object lay when it was found, and what its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    row: u32,
    version: u64,
    /// Where it begins in the memory that is shown.
    pub place: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The checksums of its blocks.
    pub sums: Checksums,
}

/// Another process's catalog, to be looked at.
#[derive(Debug)]
pub struct CatalogView {
    view: Arc<View>,
    shape: Shape,
}

impl CatalogView {
    /// Of memory that another process handed over; `None` if it is no catalog that this build reads, or is not mapped.
    pub fn of(view: Arc<View>) -> Option<CatalogView> {
        let length = view.len() / 8;
        view.mapped_at(0).filter(|_| length >= HEAD_WORDS)?;
        let nothing = Shape { buckets: 1, rows: 0, pages: 0 };
        let mut catalog = CatalogView { view, shape: nothing };
        let head = |at: usize| catalog.words().get(at).map_or(0, |word| word.load(Relaxed));
        let (magic, rows, bytes) = (head(0), head(1), head(2));
        let shape = Shape::of(usize::try_from(rows).ok()?, bytes).filter(|_| magic == MAGIC)?;
        catalog.shape = shape;
        (shape.words()? <= length).then_some(catalog)
    }

    fn words(&self) -> &[AtomicU64] {
        let Some(base) = self.view.mapped_at(0) else { return &[] };
        // SAFETY: mapped to be read for as long as the view is there, which `self` keeps, and never shorter; a mapping begins at a page. The words are
        // only loaded, by loads of their own size, which memory that cannot be written allows.
        unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), self.view.len() / 8) }
    }

    /// Where these lie, as far as it is told.
    pub fn find<'a>(&self, keys: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<Option<Found>> {
        self.search(keys, |row, key| self.read(row, key))
    }

    /// Whether it is told of all of these, at one moment, where they lie.
    pub fn has_all(&self, keys: &[ObjectKey]) -> bool {
        let mut stand = Vec::with_capacity(keys.len());
        for some in keys.chunks(TOGETHER) {
            for row in self.search(some, |row, key| Some((row, self.stands(row, key)?))) {
                let Some(row) = row else { return false };
                stand.push(row);
            }
        }
        // All of it is atomics. Each stood when it was looked at: those that stand still did when the last was.
        fence(Acquire);
        let version = |row: u32| self.words()[self.shape.row(row as usize) + VERSION].load(Relaxed);
        stand.into_iter().all(|(row, was)| version(row) == was)
    }

    /// What `read` makes of the row of each.
    fn search<'a, R>(
        &self,
        keys: impl IntoIterator<Item = &'a ObjectKey>,
        read: impl Fn(u32, &ObjectKey) -> Option<R>,
    ) -> Vec<Option<R>> {
        let words = self.words();
        let mut keys = keys.into_iter();
        let mut found = Vec::with_capacity(keys.size_hint().0);
        let mut homes = Vec::with_capacity(TOGETHER);
        loop {
            homes.clear();
            homes.extend(keys.by_ref().take(TOGETHER).map(|key| (key, self.shape.home(key))));
            if homes.is_empty() {
                return found;
            }
            homes.iter().for_each(|(_, (cells, _))| prefetch::line(&words[*cells]));
            for (_, (cells, tag)) in &homes {
                for row in self.rows(*cells, *tag) {
                    let at = self.shape.row(row as usize);
                    words[at..at + ROW_WORDS].chunks(BUCKET).for_each(|line| prefetch::line(&line[0]));
                }
            }
            found.extend(
                homes
                    .iter()
                    .map(|(key, (cells, tag))| self.rows(*cells, *tag).find_map(|row| read(row, key))),
            );
        }
    }

    /// The rows of a bucket's cells that have this tag.
    fn rows(&self, cells: usize, tag: u64) -> impl Iterator<Item = u32> {
        let cells = self.words()[cells..cells + BUCKET].iter().map(|cell| cell.load(Acquire));
        let row = move |cell: u64| (cell >> 32 == tag).then_some(cell as u32)?.checked_sub(1);
        cells.filter_map(row).filter(|row| (*row as usize) < self.shape.rows)
    }

    /// The version of a row, if it stands and is of this key: as long as the version is that.
    fn stands(&self, row: u32, key: &ObjectKey) -> Option<u64> {
        let (words, at) = (self.words(), self.shape.row(row as usize));
        let version = words[at + VERSION].load(Acquire);
        let is_it = (at + KEY..).zip(key_words(key)).all(|(at, value)| words[at].load(Relaxed) == value);
        (version % 2 == 1 && is_it).then_some(version)
    }

    /// What a row says, if that is of this key.
    fn read(&self, row: u32, key: &ObjectKey) -> Option<Found> {
        let version = self.stands(row, key)?;
        let (words, at) = (self.words(), self.shape.row(row as usize));
        let word = |at: usize| words[at].load(Relaxed);
        let (length, place) = (word(at + LENGTH), word(at + PLACE));
        // Whatever it says: an object has a byte at least, and no more than the memory has.
        let blocks = usize::try_from(block_count(length, BLOCK_BYTES)).ok();
        let blocks = blocks.filter(|n| (1..=self.shape.pages).contains(n))?;
        let mut sums = Checksums::with_capacity(blocks);
        for block in 0..blocks {
            let at = self.shape.sum(row as usize, place, block)?;
            let sum = u128::from(word(at + 1)) << 64 | u128::from(word(at));
            sums.push(sum.to_le_bytes());
        }
        // All of it is atomics.
        fence(Acquire);
        (word(at + VERSION) == version).then_some(Found { row, version, place, length, sums })
    }

    /// Behind everything that was read until now, of objects' bytes too.
    pub fn behind(&self) -> Behind<'_> {
        // The bytes are no atomics: the strongest, so that no copy of them is made behind the looks.
        fence(SeqCst);
        Behind(self)
    }
}

/// Looks at a catalog behind copies of what was found in it.
#[derive(Clone, Copy, Debug)]
pub struct Behind<'a>(&'a CatalogView);

impl Behind<'_> {
    /// Whether what was read of an object's bytes since it was found is what was posted.
    pub fn holds(&self, found: &Found) -> bool {
        let at = self.0.shape.row(found.row as usize) + VERSION;
        self.0.words().get(at).is_some_and(|version| version.load(Relaxed) == found.version)
    }
}

#[cfg(test)]
mod tests;
