//! A client without a key: it connects repeatedly, and sends nothing or a part of a head.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pagelith::transport::address::Address;

use super::hostile::Counters;
use super::{Stop, count};

/// Open connections: more than a listener's maximum of unauthenticated peers.
const OPEN: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

pub fn connect_silently(address: &Address, counters: &Counters, stop: &Stop) {
    let Address::Unix(path) = address else { panic!("a Unix socket") };
    let mut open = VecDeque::new();
    while !stop.within(PAUSE) {
        let Ok(mut socket) = UnixStream::connect(path) else { continue };
        // The server may have closed it already.
        let _ = socket.write_all(
            &[0; 20][..counters.silent.load(std::sync::atomic::Ordering::Relaxed) as usize % 21],
        );
        open.push_back(socket);
        count(&counters.silent);
        if open.len() > OPEN {
            open.pop_front();
        }
    }
}
