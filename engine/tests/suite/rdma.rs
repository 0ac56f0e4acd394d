//! RDMA devices for behaviours: a new pair of the fake library's, or the first and the last of the
//! library that `TEST_PAGELITH_VERBS` names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagelith::client::Client;
use pagelith::io::verbs::{Device, NicWish};
use pagelith::transport::rdma::host::{RdmaHost, RdmaSettings};
use pagelith::transport::rdma::registration::RdmaRegistration;
use pagelith::{GetSlice, PutSlice};

use super::fake::{Fake, fake_path, is_real, library};

/// Bytes that devices placed in memory of all clients that have ended.
static PLACED: AtomicU64 = AtomicU64::new(0);
/// Bytes that devices read from it.
static READ: AtomicU64 = AtomicU64::new(0);

/// Why there are no devices; `None` if there are.
pub fn unavailable() -> Option<String> {
    if !is_real() {
        return None;
    }
    let error = Device::names(library()).err()?;
    assert_ne!(std::env::var("TEST_PAGELITH_VM").as_deref(), Ok("1"), "{error}");
    Some(error.to_string())
}

/// The devices of a server and of its client.
pub fn hosts() -> [Arc<RdmaHost>; 2] {
    let names = if is_real() {
        let mut names = Device::names(library()).expect("devices");
        names.sort();
        [names[names.len() - 1].clone(), names[0].clone()]
    } else {
        let fake = Fake::at(&fake_path());
        [(); 2].map(|()| format!("fake{}", fake.device("")))
    };
    names.map(|name| {
        let (library, nics) = (Some(library().clone()), NicWish::Device(name));
        let settings = RdmaSettings { library, nics, ..RdmaSettings::default() };
        RdmaHost::open(&settings).expect("a device")
    })
}

/// Add the counters of a server and of its client to those of all.
pub fn count([server, client]: &[Arc<RdmaHost>; 2]) {
    PLACED.fetch_add(client.counters().counts().bytes_placed, Ordering::Relaxed);
    READ.fetch_add(server.counters().counts().bytes_read, Ordering::Relaxed);
}

/// Bytes placed in and read from memory of clients that have ended.
pub fn counts() -> (u64, u64) {
    (PLACED.load(Ordering::Relaxed), READ.load(Ordering::Relaxed))
}

/// Register the memory of gets for the time of a call. What a device refuses travels on the stream.
pub fn register_gets(client: &Client, gets: &[GetSlice<'_, '_>]) -> Vec<RdmaRegistration> {
    let pieces = gets.iter().flat_map(|get| get.pieces.iter());
    pieces.filter_map(|piece| register(client, piece)).collect()
}

/// The same for puts.
pub fn register_puts(client: &Client, puts: &[PutSlice<'_>]) -> Vec<RdmaRegistration> {
    let pieces = puts.iter().flat_map(|put| put.pieces.iter());
    pieces.filter_map(|piece| register(client, piece)).collect()
}

fn register(client: &Client, piece: &[u8]) -> Option<RdmaRegistration> {
    client.register_memory(piece.as_ptr(), piece.len()).ok().flatten()
}
