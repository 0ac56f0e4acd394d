//! What admission has learned survives `kill -9`: a process learns that pages are not requested
//! again, and is killed once a checkpoint has it. The next one refuses such pages from its first
//! put on.
#![allow(clippy::disallowed_methods, reason = "the test starts a process")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use pagelith::config::SsdAdmissionRule;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{Config, MachineLimits, Options, PageStore, PutOutcome, Size, Store};

/// The environment variable that makes the test program a child; its value is the directory.
const CHILD: &str = "LEARNING_CHILD";
const LEN: usize = 30_000;
/// Fewer pages than DRAM has room for.
const FEW: u64 = 8;
/// Pages that are put at a time.
const PIECE: u64 = 100;

fn open(dir: &Path) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(16);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec![dir.into()];
    config.ssd.admission = SsdAdmissionRule::Worth;
    config.ssd.checkpoint_segments = 1;
    config.staging.bytes = Size::mib(4);
    config.index.max_objects = Some(4096);
    config.memory.reserve = Size::ZERO;
    let facts = MachineLimits::of_this_machine().expect("facts");
    Store::open(config.validate(&facts).expect("valid")).expect("opened")
}

fn put_pages(store: &Store, pages: std::ops::Range<u64>) {
    let model = Namespace { model: "m".into(), page_tokens: 64, ..Namespace::default() }.id();
    for page in pages {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&page.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        hash[8..16].copy_from_slice(&page.to_le_bytes());
        let key = ObjectKey::new(model, PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole);
        let put = store.put_one(key.expect("a key"), &vec![page as u8; LEN], Options::default());
        assert_eq!(put, Ok(PutOutcome::Stored), "page={page}");
    }
}

/// The life of a child: learn, wait for a checkpoint, print the first page that was not put, and
/// live on.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let store = open(dir.as_ref());
    let mut next = 0;
    let mut put_more = || {
        put_pages(&store, next..next + PIECE);
        next += PIECE;
        next
    };
    while store.stats().ssd_refused < PIECE {
        assert!(put_more() < 20 * PIECE, "nothing was learned: {:?}", store.stats());
    }
    let before = store.stats().checkpoints;
    while store.stats().checkpoints == before {
        assert!(put_more() < 200 * PIECE, "no checkpoint: {:?}", store.stats());
        store.flush(Options::default()).expect("flushed");
    }
    // Standard output itself, which the test harness does not capture.
    std::io::stdout().write_all(format!("\n@{}\n", put_more()).as_bytes()).expect("a parent");
    std::io::stdout().flush().expect("a parent");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn learned_state_survives_kill() {
    let home = tempfile::tempdir().expect("a directory");
    let learned = home.path().join("learned");
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, &learned)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let said = lines.find_map(|line| line.expect("text").strip_prefix('@').map(str::to_owned));
    let next: u64 = said.expect("the child has learned").parse().expect("a page");
    child.kill().expect("killed");
    assert_eq!(child.wait().expect("ended").code(), None, "the child ended by itself");
    let store = open(&learned);
    assert!(store.opened().from_checkpoint);
    put_pages(&store, next..next + FEW);
    assert_eq!(store.stats().ssd_refused, FEW);
    // A store that has learned nothing writes such pages.
    let fresh = open(&home.path().join("fresh"));
    put_pages(&fresh, next..next + FEW);
    assert_eq!(fresh.stats().ssd_refused, 0);
}
