//! Objects of another process's store, looked at where they lie in memory that it shares: nothing is copied.

use pagelith_io::sync::Arc;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, checksum, key_hash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::{Lies, digest};
use pagelith_layouts::wire::request::Ask;
use pagelith_transport::shown::Shown;

use super::control::tell_once;
use super::lease_connection::{Keeper, Kept};
use super::{Attached, STORE};
use crate::api::error::Result;
use crate::api::request::Options;
use crate::rpc::Told;
use crate::rpc::remote_get::{Manner, no_link};

/// Most objects that are looked at by one question.
const KEYS_MAX: usize = 4096;

/// An object's bytes in the memory of the store's process. They stay as they are while this lives and [`View::is_held`]: who
/// reads them asks that once more when it has, since a store that has ended, or that takes this process for dead, keeps nothing.
/// They were verified when the view was made.
///
/// So nobody is given a slice of them: another process may write there once they are held no more.
pub struct View {
    shown: Shown,
    over: Arc<Over>,
}

/// What the objects of one question are held over. Ends with the last of them.
struct Over {
    keeper: Arc<Keeper>,
    link: u64,
    name: u64,
}

impl View {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.shown.length() as usize
    }

    /// Never: objects have a byte at least.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes are, [`View::len`] of them, to be read and not written: for a device's copy, say. They are mapped as long
    /// as this lives, whatever becomes of the store. `None` if this process could not map them.
    pub fn as_ptr(&self) -> Option<*const u8> {
        self.shown.mapped_at()
    }

    /// Copy the bytes from `from` on into `to`; true if they were held all the while.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn copy_out(&self, from: u64, to: &mut [u8]) -> bool {
        self.shown.copy_out(from, to);
        self.is_held()
    }

    /// Whether they have been held until now. Asks the store, over the link that they are held over, and waits as long as a call may
    /// take: what was read before is right if this is true.
    pub fn is_held(&self) -> bool {
        self.over.keeper.answers(self.over.link)
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for Over {
    /// Waits until the store has let go, for as long as a call may take.
    fn drop(&mut self) {
        self.keeper.let_go();
        self.keeper.unpin(self.link, &[self.name]);
    }
}

/// What a question brought: the objects, and the link and name that they are held by.
struct Seen {
    link: u64,
    name: u64,
    shown: Vec<Option<Shown>>,
}

impl Attached {
    /// Look at objects where they lie in the store's memory, which it shares with processes of its host: as
    /// [`crate::Store::view`], without a copy. `None` for what is not in its DRAM. Objects of one call are held until the last
    /// of their views is dropped, and for as long as the link lasts: [`View::is_held`]. Together all clients look at a quarter
    /// of the arena at most.
    ///
    /// # Errors
    /// `Incompatible` if the store shows this process none of its memory; `Busy` if too much of it is looked at;
    /// `Unavailable` if it cannot be reached.
    pub fn view_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<Option<View>>> {
        let manner = self.manner(&options);
        let mut views = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let Seen { link, name, shown } =
                self.keeper.take(manner.deadline, |kept| self.view_once(kept, keys, manner))?;
            let over = Arc::new(Over { keeper: self.keeper.clone(), link, name });
            let view = |shown: Option<Shown>| shown.map(|shown| View { shown, over: over.clone() });
            views.extend(shown.into_iter().map(view));
        }
        Ok(views)
    }

    fn view_once(&self, kept: &mut Kept, keys: &[ObjectKey], manner: Manner) -> Result<Seen> {
        let name = kept.name();
        // Answers that nobody waited for.
        kept.desk.take_all();
        let told = tell_once(&*self.clock, &mut kept.desk, &Ask::View(name, List::of(keys)), manner, &|| {});
        let link = kept.desk.lines.made();
        let views = match told {
            Ok((Told::Views(views), _)) if views.len() == keys.len() => views,
            told => {
                // What was not answered in time may be held all the same.
                kept.say(link, &Ask::Unpin(name), manner, self.clock.now());
                return Err(told.err().unwrap_or_else(no_link));
            }
        };
        let caller = kept.desk.lines.stands(STORE).ok_or_else(no_link)?;
        let seen = |(key, (hash, lies)): (&ObjectKey, (Checksum, Option<Lies>))| {
            let lies = lies.filter(|_| hash == key_hash(key))?;
            let shown = caller.view((lies.region, lies.at), lies.length)?;
            let whole = digest(&sums(&shown)) == lies.digest;
            if !whole {
                tracing::warn!(%key, "what the store shows is not what it vouches for");
            }
            whole.then_some(shown)
        };
        Ok(Seen { link, name, shown: keys.iter().zip(views).map(seen).collect() })
    }
}

/// The checksums of the blocks of what is shown.
fn sums(shown: &Shown) -> Checksums {
    let mut block = vec![0; BLOCK_BYTES as usize];
    let length = shown.length();
    let sum = |from: u64| {
        let block = &mut block[..(length - from).min(BLOCK_BYTES.into()) as usize];
        shown.copy_out(from, block);
        checksum(block)
    };
    (0..length).step_by(BLOCK_BYTES as usize).map(sum).collect()
}
