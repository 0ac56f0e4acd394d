//! Registered host pools of every layout of docs/geometry.md: all of their bytes move by RDMA.

use pagelith::layouts::geometry::presets::{self, DeepSeekV4Layers};
use pagelith::layouts::geometry::{
    Attention, Chunk, Extents, Geometry, Layout, Model, Placement, Pool,
};
use pagelith::transport::rdma::counters::RdmaCounts;

use super::*;

/// Pages of a host pool.
const SLOTS: u64 = 2;

/// A model of each class, with pages of 16 tokens where the length does not change the layout.
fn models() -> Vec<Model> {
    let of = |name: &str| Model { page_tokens: 16, ..presets::model(name).expect("a preset") };
    let mut asymmetric = of("llama-3-8b");
    if let Attention::Heads(heads) = &mut asymmetric.attention {
        heads.v_dim = 64;
    }
    let mut hybrid = of("qwen3-next");
    hybrid.linear.as_mut().expect("it has a state").layers = 2;
    let mut draft = of("llama-3-8b+llama-3-8b-eagle3");
    draft.name = "draft".into();
    let rows = presets::deepseek_v4(DeepSeekV4Layers { window: 3, c4: 2, c128: 2 }, 128);
    let latent = ["deepseek-v3", "deepseek-v3.2+deepseek-v3.2-mtp"].map(of);
    [asymmetric, hybrid, draft, rows].into_iter().chain(latent).collect()
}

/// All pools that a layout has for these models.
fn pools(layout: Layout) -> Vec<Pool> {
    let models = models();
    let geometries = models.iter().filter_map(|model| {
        // A layout that a pool of the model does not have is refused.
        Geometry::new(model, &Placement::single(layout)).ok()
    });
    geometries.flat_map(|geometry| geometry.pools).collect()
}

/// The memory of an object: its chunks of the pool's buffers, in order.
fn pieces<'a>(buffers: &'a mut [AlignedBuf], chunks: &[Chunk]) -> Vec<&'a mut [u8]> {
    let mut found: Vec<(usize, &mut [u8])> = Vec::new();
    for (number, buffer) in buffers.iter_mut().enumerate() {
        let (mut rest, mut from) = (&mut buffer[..], 0);
        for (at, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| chunk.buffer == number) {
            let (_, after) = rest.split_at_mut(chunk.offset as usize - from);
            let (piece, after) = after.split_at_mut(chunk.len as usize);
            (rest, from) = (after, (chunk.offset + chunk.len) as usize);
            found.push((at, piece));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, piece)| piece).collect()
}

fn on_streams(counts: RdmaCounts) -> u64 {
    counts.stream_unregistered + counts.stream_small + counts.stream_scattered
}

/// Put all objects of a pool from registered buffers and get them into the same ones. Returns their
/// bytes.
fn round_trip(client: &pagelith::client::Client, pool: &Pool, first_page: u64) -> u64 {
    let extents = Extents::new(pool, SLOTS).expect("fits");
    let lengths: Vec<usize> = extents.buffer_bytes().iter().map(|bytes| *bytes as usize).collect();
    let mut buffers = AlignedBuf::with_lengths(&lengths).expect("memory");
    for (seed, buffer) in (first_page..).zip(&mut buffers) {
        let content = bytes(seed, buffer.len());
        buffer.copy_from_slice(&content);
    }
    let before: Vec<Vec<u8>> = buffers.iter().map(|buffer| buffer.to_vec()).collect();
    let register = |buffer: &AlignedBuf| client.register_memory(buffer.as_ptr(), buffer.len());
    let registered: Vec<_> =
        buffers.iter().map(|buffer| register(buffer).expect("registered")).collect();
    let mut objects = Vec::new();
    for (slot, page) in (0..SLOTS).zip(first_page..) {
        for (component, part) in pool.components.iter().enumerate() {
            let chunks: Vec<Chunk> = extents.chunks(slot, component).expect("a slot").collect();
            objects.push((helpers::key_in(helpers::namespace("m"), page, &part.name), chunks));
        }
    }
    for (key, chunks) in &objects {
        let pieces = pieces(&mut buffers, chunks);
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &**piece).collect();
        let object = PutSlice { key: *key, pieces: &pieces };
        let outcomes = client.put_batch(&[object], Options::default());
        assert_eq!(outcomes, [Ok(PutOutcome::Stored)], "{}", pool.client_name());
    }
    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
    for (key, chunks) in &objects {
        let mut pieces = pieces(&mut buffers, chunks);
        let get = GetSlice { key: *key, range: None, pieces: &mut pieces };
        let outcomes = client.get_batch(&mut [get], Options::default());
        assert!(outcomes[0].as_ref().is_ok_and(GetOutcome::is_hit), "{outcomes:?}");
    }
    // The pages of a buffer have all of its bytes.
    for (buffer, before) in buffers.iter().zip(&before) {
        assert!(buffer[..] == before[..], "bytes of {} differ", pool.client_name());
    }
    drop(registered);
    lengths.iter().map(|length| *length as u64).sum()
}

#[test]
fn bytes_of_registered_pools_of_every_layout_move_by_rdma_alone() {
    for layout in Layout::ALL {
        let Some((world, store)) = served_with(Size::mib(256)) else { return };
        let (client, [server, own]) = (store.client(), store.devices());
        let pools = pools(layout);
        assert!(pools.iter().any(|pool| !pool.components.is_empty()), "{layout}");
        let mut total = 0;
        for (number, pool) in (0..).zip(&pools) {
            total += round_trip(client, pool, number * SLOTS);
            let placed = own.counts().bytes_placed;
            assert_eq!(placed, total, "layout={layout} pool={}", pool.client_name());
            assert_eq!(own.registered_bytes(), 0);
        }
        let streams = (on_streams(own.counts()), on_streams(server.counts()));
        assert_eq!(streams, (0, 0), "layout={layout}");
        helpers::until(&world, "WRITEs completed", || store.stats().rdma_bytes_written == total);
        assert_eq!(store.stats().rdma_bytes_read, total, "layout={layout}");
    }
}

/// An object of 64 pieces, as a page of `layer_first` with 64 layers has.
#[test]
fn pieces_of_512_bytes_move_by_rdma_and_shorter_ones_over_tcp() {
    const LAYERS: usize = 64;
    let Some((_world, store)) = served() else { return };
    let (client, [_, own]) = (store.client(), store.devices());
    let mut page = 100;
    for (length, by_rdma) in [(512, true), (511, false)] {
        let mut buffer = AlignedBuf::many(1, LAYERS * 4096).expect("memory").remove(0);
        buffer.copy_from_slice(&bytes(length as u64, LAYERS * 4096));
        let content: Vec<u8> =
            buffer.chunks(4096).flat_map(|layer| &layer[..length]).copied().collect();
        let registered = client.register_memory(buffer.as_ptr(), buffer.len()).expect("registered");
        let before = own.counts();
        page += 1;
        let pieces: Vec<&[u8]> = buffer.chunks(4096).map(|layer| &layer[..length]).collect();
        let object = PutSlice { key: key(page), pieces: &pieces };
        assert_eq!(client.put_batch(&[object], Options::default()), [Ok(PutOutcome::Stored)]);
        buffer.fill(0);
        let mut pieces: Vec<&mut [u8]> =
            buffer.chunks_mut(4096).map(|layer| &mut layer[..length]).collect();
        let get = GetSlice { key: key(page), range: None, pieces: &mut pieces };
        let outcomes = client.get_batch(&mut [get], Options::default());
        assert!(outcomes[0].as_ref().is_ok_and(GetOutcome::is_hit), "{outcomes:?}");
        let got = buffer.chunks(4096).flat_map(|layer| &layer[..length]);
        assert!(got.eq(&content), "bytes differ length={length}");
        let (after, bytes) = (own.counts(), (LAYERS * length) as u64);
        let placed = after.bytes_placed - before.bytes_placed;
        let small = after.stream_small - before.stream_small;
        // Of the put and of the get.
        let expected = if by_rdma { (bytes, 0) } else { (0, 2 * bytes) };
        assert_eq!((placed, small), expected, "length={length}");
        drop(registered);
    }
}
