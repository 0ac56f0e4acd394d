//! What a client looks at where it lies in the store's memory, and for how long that is held.

use pagelith::client::View;
use pagelith::{ErrorKind, Options};
use pagelith_layouts::key::ObjectKey;

use super::client::{Face, Shared, key};
use super::oracle::length;
use crate::entropy::SplitMix64;

/// Most objects that a client looks at at a time.
const MOST: usize = 4;

/// An object that is looked at, and the bytes that it had.
struct Look {
    object: usize,
    view: View,
    bytes: Vec<u8>,
}

/// What a client looks at.
#[derive(Default)]
pub struct Looks(Vec<Look>);

/// The bytes, if they were held while they were read.
fn held(view: &View) -> Option<Vec<u8>> {
    let mut bytes = vec![0; view.len()];
    view.copy_out(0, &mut bytes).then_some(bytes)
}

impl Looks {
    /// Look at some more: what is said to be held has to be an object's bytes. Says whether no store was there.
    pub fn begin(&mut self, face: &Face, objects: &[usize], options: Options, shared: &Shared) -> bool {
        let Face::Attached(client, _, store) = face else { return false };
        let keys: Vec<ObjectKey> = objects.iter().map(|object| key(*object)).collect();
        let since = shared.oracle().moment();
        let views = match client.view_batch(&keys, options) {
            Ok(views) => views,
            Err(error) => return error.kind == ErrorKind::Unavailable,
        };
        for (object, view) in objects.iter().zip(views) {
            let Some((view, bytes)) = view.and_then(|view| held(&view).map(|bytes| (view, bytes))) else {
                continue;
            };
            let all = 0..length(*object);
            let wrong = shared.oracle().read(*store, *object, &all, &bytes, since);
            let mut tally = shared.tally();
            tally.viewed += 1;
            if let Some(wrong) = wrong {
                tally.wrong += 1;
                tally.found(wrong);
            }
            self.0.push(Look { object: *object, view, bytes });
        }
        false
    }

    /// Look at one of them again, and then no more: what is said to be held has not changed.
    pub fn end_one(&mut self, rng: &mut SplitMix64, shared: &Shared) {
        if self.0.is_empty() {
            return;
        }
        let Look { object, view, bytes } = self.0.swap_remove(rng.below(self.0.len() as u64) as usize);
        if held(&view).is_some_and(|now| now != bytes) {
            let mut tally = shared.tally();
            tally.wrong += 1;
            tally.found(format!("what is looked at and held has changed object={object}"));
        }
    }

    /// Whether there are as many as there may be.
    pub fn is_full(&self) -> bool {
        self.0.len() >= MOST
    }
}
