//! Views: objects of a store in another process, read in place from the memory that it shares,
//! without a copy.

use pagelith_io::sync::Arc;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, checksum, key_hash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::{RegionExtent, digest};
use pagelith_layouts::wire::request::RequestBody;
use pagelith_transport::shown::ShmRef;

use super::control::control_once;
use super::lease_connection::{LeaseConnection, LeaseLink};
use super::{Client, STORE};
use crate::api::error::Result;
use crate::api::request::Options;
use crate::rpc::ControlReply;
use crate::rpc::remote_get::{CallOptions, no_link};

/// Maximum objects of one view request.
const KEYS_MAX: usize = 4096;

/// An object's bytes in the memory of the store process, verified when the view was created. They
/// do not change while the view lives and [`View::is_held`]. Readers check that once more after
/// reading: a store that has ended, or treats this process as dead, keeps no bytes.
///
/// There is no access as a slice, since another process may write to this memory once it is no
/// longer held.
pub struct View {
    shown: ShmRef,
    lease: Arc<ViewLease>,
}

/// The lease of the objects of one request; ends with the last of their views.
struct ViewLease {
    leases: Arc<LeaseConnection>,
    link: u64,
    name: u64,
}

impl View {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.shown.length() as usize
    }

    /// Always false: objects have at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the bytes, [`View::len`] of them, for reading only: for a copy by a device, for
    /// example. They stay mapped while this view lives, whatever happens to the store. `None` if
    /// this process could not map them.
    pub fn as_ptr(&self) -> Option<*const u8> {
        self.shown.mapped_at()
    }

    /// Copy the bytes from `from` on into `to`; true if they were held during the copy.
    ///
    /// # Panics
    /// If the view has fewer bytes.
    pub fn copy_out(&self, from: u64, to: &mut [u8]) -> bool {
        self.shown.copy_out(from, to);
        self.is_held()
    }

    /// Whether the bytes have been held until now. Sends a request to the store over the link of
    /// the lease, and waits up to the timeout of calls. If this is true, all bytes that were read
    /// before are correct.
    pub fn is_held(&self) -> bool {
        self.lease.leases.confirm(self.lease.link)
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for ViewLease {
    /// Waits until the store has released the lease, at most the timeout of calls.
    fn drop(&mut self) {
        self.leases.release();
        self.leases.unpin(self.link, &[self.name]);
    }
}

/// The result of one request: references to the objects, and the link and name of their lease.
struct ViewedKeys {
    link: u64,
    name: u64,
    shown: Vec<Option<ShmRef>>,
}

impl Client {
    /// View objects in place in the store's memory, which it shares with processes on its host: as
    /// `Store::view`, without a copy. `None` for objects that are not in its DRAM. The
    /// objects of one call are held until the last of their views is dropped, but no longer than
    /// the link lasts: [`View::is_held`]. All clients together may view at most a quarter of the
    /// arena.
    ///
    /// # Errors
    /// `Incompatible` if the store shares no memory with this process; `Busy` if too much memory is
    /// viewed; `Unavailable` if the store cannot be reached.
    pub fn view_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<Option<View>>> {
        let call = self.call_options(&options);
        let mut views = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_MAX) {
            let ViewedKeys { link, name, shown } = self
                .leases
                .acquire(call.deadline, |lease_link| self.view_once(lease_link, keys, call))?;
            let lease = Arc::new(ViewLease { leases: self.leases.clone(), link, name });
            let view =
                |shown: Option<ShmRef>| shown.map(|shown| View { shown, lease: lease.clone() });
            views.extend(shown.into_iter().map(view));
        }
        Ok(views)
    }

    fn view_once(
        &self,
        lease_link: &mut LeaseLink,
        keys: &[ObjectKey],
        call: CallOptions,
    ) -> Result<ViewedKeys> {
        let name = lease_link.next_name();
        // Discard late responses of earlier calls.
        lease_link.connections.take_responses();
        let reply = control_once(
            &*self.clock,
            &mut lease_link.connections,
            &RequestBody::View(name, List::of(keys)),
            call,
            &|| {},
        );
        let link = lease_link.connections.pool.generation();
        let views = match reply {
            Ok((ControlReply::Views(views), _)) if views.len() == keys.len() => views,
            reply => {
                // A request without a reply may have been executed.
                lease_link.send_without_reply(
                    link,
                    &RequestBody::Unpin(name),
                    call,
                    self.clock.now(),
                );
                return Err(reply.err().unwrap_or_else(no_link));
            }
        };
        let client = lease_link.connections.pool.live(STORE).ok_or_else(no_link)?;
        let view = |(key, (hash, location)): (&ObjectKey, (Checksum, Option<RegionExtent>))| {
            let location = location.filter(|_| hash == key_hash(key))?;
            let shown = client.peer_ref((location.region, location.at), location.length)?;
            let matches = digest(&block_checksums(&shown)) == location.digest;
            if !matches {
                tracing::warn!(%key, "shared bytes of an object do not match the store's digest");
            }
            matches.then_some(shown)
        };
        Ok(ViewedKeys { link, name, shown: keys.iter().zip(views).map(view).collect() })
    }
}

/// The checksums of the blocks of referenced bytes.
fn block_checksums(shown: &ShmRef) -> Checksums {
    let mut block = vec![0; BLOCK_BYTES as usize];
    let length = shown.length();
    let sum = |from: u64| {
        let block = &mut block[..(length - from).min(BLOCK_BYTES.into()) as usize];
        shown.copy_out(from, block);
        checksum(block)
    };
    (0..length).step_by(BLOCK_BYTES as usize).map(sum).collect()
}
