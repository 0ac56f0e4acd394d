//! Look-ups.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::Ask;

use super::Attached;
use crate::api::error::Result;
use crate::api::hits;
use crate::api::hits::{PagesFound, PagesQuery};
use crate::api::request::Options;
use crate::rpc::exists::RemoteExists;

/// Most keys of one look-up of a prefix.
const PREFIX_KEYS_MAX: usize = 4096;

impl Attached {
    /// Which objects are here, all of them at one moment. What is here counts as asked for.
    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>> {
        let manner = self.manner(&options);
        self.with_desk(|desk| {
            let mut exists = RemoteExists::begin(desk, keys, vec![false; keys.len()], manner);
            self.drive(desk, |desk, now| exists.advance(desk, now));
            match exists.failed() {
                Some(error) => Err(error.clone()),
                None => Ok(exists.finish()),
            }
        })
    }

    /// How many of `keys` are here before the first that is not.
    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        let mut here = 0;
        for chunk in keys.chunks(PREFIX_KEYS_MAX) {
            let depth = options.depth.saturating_add(u32::try_from(here).unwrap_or(u32::MAX));
            let options = Options { depth, ..options };
            let found = self.number(&Ask::ExistsPrefix(List::of(chunk)), &options)?;
            let found = usize::try_from(found).map_or(chunk.len(), |found| found.min(chunk.len()));
            here += found;
            if found < chunk.len() {
                break;
            }
        }
        Ok(here)
    }

    /// As [`crate::Store::exists_groups`]; the pools are asked about one after the other, so that something may come or go
    /// between two of them.
    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        hits::exists_groups_by(&mut There { attached: self, options }, query)
    }
}

/// Looks at the store over a link.
struct There<'a> {
    attached: &'a Attached,
    options: Options,
}

impl hits::KeyLookup for There<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        self.attached.exists_prefix(&keys.collect::<Vec<_>>(), self.options)
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        self.attached.exists_batch(&keys.collect::<Vec<_>>(), self.options)
    }
}
