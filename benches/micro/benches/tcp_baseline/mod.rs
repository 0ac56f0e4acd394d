//! The limit of TCP for a batch of gets: one thread sends as many bytes for each request byte, and
//! another receives them into the same buffers and checksums them.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::Scope;

use pagelith::AlignedBuf;
use pagelith::layouts::checksum::{BLOCK_BYTES, checksum};

use super::common::mix;
use super::transports::{BATCH, DATA};

/// The requesting end. The other end's thread ends with it.
pub struct TcpBaseline(TcpStream);

impl TcpBaseline {
    pub fn new<'scope>(scope: &'scope Scope<'scope, '_>, object_bytes: usize) -> TcpBaseline {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        scope.spawn(move || serve(listener, object_bytes));
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_nodelay(true).expect("set");
        TcpBaseline(stream)
    }

    /// Sends a request byte and receives the batch's objects, checksummed in their buffers.
    pub fn get(&mut self, buffers: &mut [AlignedBuf]) {
        self.0.write_all(&[1]).expect("the peer process runs");
        for buffer in buffers {
            self.0.read_exact(buffer).expect("received");
            for block in buffer.chunks(BLOCK_BYTES as usize) {
                black_box(checksum(block));
            }
        }
    }
}

fn serve(listener: TcpListener, object_bytes: usize) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    stream.set_nodelay(true).expect("set");
    let objects = DATA / object_bytes;
    let mut far = AlignedBuf::many(objects, object_bytes).expect("memory");
    far.iter_mut().for_each(|object| object.fill(1));
    let (mut byte, mut turn) = ([0], 0u64);
    while stream.read_exact(&mut byte).is_ok() {
        for i in 0..BATCH as u64 {
            turn += 1;
            if stream.write_all(&far[(mix(turn + i) % objects as u64) as usize]).is_err() {
                return;
            }
        }
    }
}
