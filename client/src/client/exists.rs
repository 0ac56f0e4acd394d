//! Lookups.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::RequestBody;

use super::Client;
use super::split_call::SplitCall;
use crate::api::error::Result;
use crate::api::hits;
use crate::api::hits::{PagesFound, PagesQuery};
use crate::api::request::Options;
use crate::rpc::exists::RemoteExists;

/// Maximum keys of one prefix lookup.
const PREFIX_KEYS_MAX: usize = 4096;

impl Client {
    /// Which objects are in the store, all at one moment. Objects that are found count as
    /// requested.
    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>> {
        let call = self.call_options(&options);
        self.with_connections(|connections| {
            let mut exists = RemoteExists::begin(connections, keys, vec![false; keys.len()], call);
            self.drive(connections, |connections, now| exists.advance(connections, now));
            match exists.failed() {
                Some(error) => Err(error.clone()),
                None => Ok(exists.finish()),
            }
        })
    }

    /// The number of `keys` in the store before the first that is not.
    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        let call = self.split_call(options);
        let mut present = 0;
        for chunk in keys.chunks(PREFIX_KEYS_MAX) {
            let ask = RequestBody::ExistsPrefix(List::of(chunk));
            let found = self.number(&ask, &call.next(present))?;
            let found = usize::try_from(found).map_or(chunk.len(), |found| found.min(chunk.len()));
            present += found;
            if found < chunk.len() {
                break;
            }
        }
        Ok(present)
    }

    /// As `Store::exists_groups`, but the pools are looked up one after the other, so
    /// objects may appear or disappear between two of them.
    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        let call = self.split_call(options);
        hits::exists_groups_by(&mut RemoteLookup { attached: self, call }, query)
    }
}

/// Lookups over a link.
struct RemoteLookup<'a> {
    attached: &'a Client,
    call: SplitCall<'a>,
}

impl hits::KeyLookup for RemoteLookup<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        self.attached.exists_prefix(&keys.collect::<Vec<_>>(), self.call.next(0))
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        self.attached.exists_batch(&keys.collect::<Vec<_>>(), self.call.next(0))
    }
}
