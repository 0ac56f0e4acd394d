//! Every writer size by every reader size, for every pool and layout: read, compared with the
//! tensor, and shown in `benches/results/resharding.md`. `TEST_PAGELITH_BLESS=1 cargo test -p
//! pagelith --test reshard` writes the table anew; everything around the markers is written by
//! hand.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use pagelith::layouts::geometry::Layout;
use pagelith::layouts::key::Role;
use pagelith::{PutOutcome, Store, Tier};

use super::servers::{Case, Side, get, mha, mla, namespace_of, restored};
use super::{cold, in_memory};

const TPS: [u16; 5] = [1, 2, 4, 8, 16];
const BEGIN: &str =
    "<!-- resharding: rendered from what was read, see engine/tests/reshard/table.rs -->\n";
const END: &str = "<!-- end of resharding -->\n";

/// The cases: the pool, and its layout.
fn cases() -> Vec<(&'static str, &'static str, Case)> {
    use Layout::{LayerFirst, PageFirst, PageHead, PageUnified};
    use Role::{Draft, Target};
    let alike = |role, heads, layout| mha(role, heads, Side::of(layout), Side::of(layout));
    let split = |role, heads, layout| {
        mha(role, heads, Side::split(layout, heads), Side::split(layout, heads))
    };
    vec![
        ("MHA, 8 heads", "`page_head`", alike(Target, 8, PageHead)),
        ("MHA, 8 heads", "`page_head`, both split by 8", split(Target, 8, PageHead)),
        (
            "MHA, 8 heads",
            "`page_head`, the writer splits by 8",
            mha(Target, 8, Side::split(PageHead, 8), Side::of(PageHead)),
        ),
        (
            "MHA, 8 heads",
            "`page_head`, the reader splits by 8",
            mha(Target, 8, Side::of(PageHead), Side::split(PageHead, 8)),
        ),
        ("MHA, 8 heads", "`page_unified`, both split by 8", split(Target, 8, PageUnified)),
        ("MHA, 8 heads", "`page_first`", alike(Target, 8, PageFirst)),
        ("MHA, 8 heads", "`layer_first`", alike(Target, 8, LayerFirst)),
        (
            "MHA, 8 heads",
            "`page_first`, read into `page_head`",
            mha(Target, 8, Side::of(PageFirst), Side::of(PageHead)),
        ),
        ("MHA, 4 heads", "`page_head`", alike(Target, 4, PageHead)),
        ("MHA, 4 heads", "`page_head`, both split by 4", split(Target, 4, PageHead)),
        ("MHA, 4 heads", "`layer_first`", alike(Target, 4, LayerFirst)),
        ("MHA draft, 8 heads", "`page_head`", alike(Draft, 8, PageHead)),
        ("MHA draft, 8 heads", "`page_head`, both split by 8", split(Draft, 8, PageHead)),
        ("MHA draft, 8 heads", "`page_first`", alike(Draft, 8, PageFirst)),
        ("MLA", "`page_first`", mla(Target, PageFirst)),
        ("MLA", "`layer_first`", mla(Target, LayerFirst)),
        ("MLA draft", "`page_first`", mla(Draft, PageFirst)),
    ]
}

/// The work of one rank of a reader for one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    gets: usize,
    moves: usize,
    bytes_read: u64,
    bytes_wanted: u64,
}

/// Read the page at every rank of a size; each rank's buffer equals the one that it would have
/// written.
fn read(store: &Store, case: &Case, wrote: u16, tp: u16, expected: &[Vec<u8>], from: Tier) -> Cost {
    let costs = (0..tp).zip(expected).map(|(rank, expected)| {
        let reads = case.reads(namespace_of(wrote), wrote, rank, tp);
        let mut buffer = case.empty(rank, tp);
        let outcomes = get(store, &reads, &mut buffer);
        assert!(restored(&reads, &outcomes, from), "{wrote} to {rank} of {tp}: {outcomes:?}");
        assert!(buffer == *expected, "wrong bytes: {case:?} {wrote} to {rank} of {tp}");
        Cost {
            gets: reads.len(),
            moves: reads.iter().map(|r| r.moves).sum(),
            bytes_read: reads.iter().map(|r| r.bytes_read()).sum(),
            bytes_wanted: reads.iter().map(|r| r.range.end - r.range.start).sum(),
        }
    });
    let costs: Vec<_> = costs.collect();
    assert!(costs.iter().all(|cost| *cost == costs[0]), "every rank has the same to do: {costs:?}");
    costs[0]
}

/// Rows of one case: a writer each, a reader a column.
fn rows(store: &Store, case: &Case, from: Tier) -> Vec<(u16, [Cost; 5])> {
    let writers: Vec<u16> = TPS.into_iter().filter(|tp| case.writes_at(*tp)).collect();
    for wrote in &writers {
        let outcomes = case.write(store, namespace_of(*wrote), *wrote);
        assert!(outcomes.iter().all(|o| *o == Ok(PutOutcome::Stored)), "{wrote}: {outcomes:?}");
    }
    if from == Tier::Ssd {
        store.flush(Default::default()).expect("flushed");
    }
    let expected: HashMap<u16, Vec<Vec<u8>>> = TPS
        .into_iter()
        .map(|tp| (tp, (0..tp).map(|rank| case.expected(rank, tp)).collect()))
        .collect();
    let row = |wrote: u16| TPS.map(|tp| read(store, case, wrote, tp, &expected[&tp], from));
    writers.into_iter().map(|wrote| (wrote, row(wrote))).collect()
}

fn table() -> String {
    let mut out =
        "| pool | kept in | written at | readers right | read at 1 | at 2 | at 4 | at 8 | at 16 |\n\
                   | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for (pool, kept, case) in cases() {
        let world = cold();
        let store = world.open(&world.cold_config());
        // Writers with equal work for a reader share a row.
        for alike in rows(&store, &case, Tier::Ssd).chunk_by(|a, b| a.1 == b.1) {
            let cells = alike[0].1.map(|c| {
                let read = c.bytes_read as f64 / c.bytes_wanted as f64;
                format!("{} / {} / {read:.1}", c.gets, c.moves)
            });
            let wrote: Vec<_> = alike.iter().map(|(wrote, _)| wrote.to_string()).collect();
            // Wrong bytes have failed the test already.
            let ranks = wrote.len() * TPS.iter().map(|tp| usize::from(*tp)).sum::<usize>();
            let (wrote, cells) = (wrote.join(", "), cells.join(" | "));
            writeln!(out, "| {pool} | {kept} | {wrote} | {ranks} of {ranks} | {cells} |")
                .expect("a string");
        }
    }
    out
}

#[test]
fn every_tp_size_reads_ssd_pages_of_every_tp_size() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../benches/results/resharding.md");
    let page = std::fs::read_to_string(&path).expect("benches/results/resharding.md is there");
    let (before, rest) = page.split_once(BEGIN).expect("the begin marker");
    let (shown, after) = rest.split_once(END).expect("the end marker");
    let table = table();
    if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"))
            .expect("the page can be written");
        return;
    }
    let differs = shown.lines().zip(table.lines()).find(|(a, b)| a != b);
    assert!(
        shown == table,
        "benches/results/resharding.md differs from the reads; first difference: {differs:?}"
    );
}

#[test]
fn every_tp_size_reads_memory_pages_of_every_tp_size() {
    for (_, _, case) in cases() {
        let world = in_memory();
        let store = world.open(&world.memory_config(pagelith::Size::mib(24)));
        assert!(!rows(&store, &case, Tier::Memory).is_empty());
    }
}
