//! Views: objects that a client reads in the store's memory while the store keeps them there.

use pagelith::client::View;
use pagelith::{ErrorKind, Options};
use pagelith_layouts::key::ObjectKey;

use super::object_keys::key;
use super::oracle::length;
use super::shared::Shared;
use super::store_handle::StoreHandle;
use crate::entropy::SplitMix64;

/// Most views that a client holds at once.
const VIEWS_MAX: usize = 4;

/// A view, and the bytes that it had first.
struct HeldView {
    object: usize,
    view: View,
    bytes: Vec<u8>,
}

/// The views of a client.
#[derive(Default)]
pub struct Views(Vec<HeldView>);

/// The bytes, if they were kept in place while they were read.
fn valid_bytes(view: &View) -> Option<Vec<u8>> {
    let mut bytes = vec![0; view.len()];
    view.copy_out(0, &mut bytes).then_some(bytes)
}

impl Views {
    /// Opens more views: the bytes of a valid view must be the object's. True if the store was
    /// unavailable.
    pub fn open(
        &mut self,
        handle: &StoreHandle,
        objects: &[usize],
        options: Options,
        shared: &Shared,
    ) -> bool {
        let StoreHandle::Attached(client, _, store) = handle else { return false };
        let keys: Vec<ObjectKey> = objects.iter().map(|object| key(*object)).collect();
        let since = shared.oracle().moment();
        let views = match client.view_batch(&keys, options) {
            Ok(views) => views,
            Err(error) => return error.kind == ErrorKind::Unavailable,
        };
        for (object, view) in objects.iter().zip(views) {
            let Some((view, bytes)) =
                view.and_then(|view| valid_bytes(&view).map(|bytes| (view, bytes)))
            else {
                continue;
            };
            let all = 0..length(*object);
            let wrong = shared.oracle().read(*store, *object, &all, &bytes, since);
            let mut tally = shared.tally();
            tally.viewed += 1;
            if let Some(wrong) = wrong {
                tally.wrong += 1;
                tally.add_finding(wrong);
            }
            self.0.push(HeldView { object: *object, view, bytes });
        }
        false
    }

    /// Reads one view again and releases it: a valid view has not changed.
    pub fn recheck_one(&mut self, rng: &mut SplitMix64, shared: &Shared) {
        if self.0.is_empty() {
            return;
        }
        let HeldView { object, view, bytes } =
            self.0.swap_remove(rng.below(self.0.len() as u64) as usize);
        if valid_bytes(&view).is_some_and(|now| now != bytes) {
            let mut tally = shared.tally();
            tally.wrong += 1;
            tally.add_finding(format!("bytes of valid view changed object={object}"));
        }
    }

    /// Whether the client holds [`VIEWS_MAX`] views.
    pub fn is_full(&self) -> bool {
        self.0.len() >= VIEWS_MAX
    }
}
