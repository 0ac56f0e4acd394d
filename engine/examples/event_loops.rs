//! Batches for callers that must not block: in async tasks, and in a poll loop over epoll.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;

use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::{
    AlignedBuf, BatchQueue, CompletedBatch, Destination, Get, Options, Put, Source, Store,
};
use rustix::event::epoll;

const PAGE: usize = 4096;

fn buffer(byte: u8) -> std::io::Result<AlignedBuf> {
    let mut buffer = AlignedBuf::new(PAGE)?;
    buffer.fill(byte);
    Ok(buffer)
}

/// With tokio; any other executor works too.
async fn put_and_get(batches: &BatchQueue, key: ObjectKey) -> Result<(), Box<dyn Error>> {
    let put = Put::new(key, Source::owned(buffer(7)?));
    let ticket = batches.submit_put(vec![put.into()], Options::default());
    let Some(CompletedBatch::Put(done)) = batches.completion(ticket).await else {
        return Err("no outcome".into());
    };
    println!("put: {:?}", done[0].outcome);
    let get = Get::new(key, Destination::owned(buffer(0)?));
    let ticket = batches.submit_get(vec![get], Options::default());
    let Some(CompletedBatch::Get(done)) = batches.completion(ticket).await else {
        return Err("no outcome".into());
    };
    println!("get: {:?}", done[0].outcome);
    assert!(done[0].destination.pieces().all(|piece| piece == [7; PAGE]));
    Ok(())
}

/// The descriptor of the queue is one among others of the loop.
fn poll_loop(batches: &BatchQueue, key: ObjectKey) -> Result<(), Box<dyn Error>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&epoll, batches, data, epoll::EventFlags::IN)?;
    let get = || Ok(Get::new(key, Destination::owned(buffer(0)?)));
    let mut wanted = Vec::new();
    for _ in 0..3 {
        let gets: std::io::Result<Vec<Get>> = [get()].into_iter().collect();
        wanted.push(batches.submit_get(gets?, Options::default()));
    }
    while !wanted.is_empty() {
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut Vec::with_capacity(1)), None)?;
        while let Some((ticket, done)) = batches.poll() {
            let CompletedBatch::Get(done) = done else { return Err("not a get".into()) };
            assert!(done[0].outcome.as_ref().is_ok_and(|outcome| outcome.is_hit()));
            wanted.retain(|one| *one != ticket);
        }
    }
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let store = Store::builder().dram("8MiB").open()?;
    let batches = BatchQueue::new(&store, 2)?;
    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let key = ObjectKey::new(model, PrefixHash([7; 32]), Role::Target, "kv", "kv", Shard::Whole)?;
    tokio::runtime::Builder::new_current_thread().build()?.block_on(put_and_get(&batches, key))?;
    poll_loop(&batches, key)?;
    drop(batches);
    store.close()?;
    Ok(())
}
