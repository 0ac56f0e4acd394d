//! The sides of the comparison, one file each.

mod file_per_object;
mod fio;
mod fjall;
mod foyer;
mod nixl;
mod pagelith;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::path::Path;
use std::sync::Arc;

use crate::args::RunArgs;
use crate::check::Check;
use crate::contents::Contents;
use crate::engine::{Engine, Open};
use crate::peer::{Setup, Side, SideProperties};
use crate::work::Work;

/// Sides that cannot run, with reasons.
pub(crate) type Skipped = Vec<(String, String)>;

/// All sides for this work, and those that cannot run.
pub(crate) fn sides(
    args: &RunArgs,
    work: &Work,
    contents: &Arc<Contents>,
    dir: &Path,
) -> (Vec<Box<dyn Side>>, Skipped) {
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    let mut skipped = Skipped::new();
    for (name, open, manner, verifies) in engines(work) {
        let check = Arc::new(Check::new(contents.clone()));
        let setup = Setup { dir: dir.join(name), work: *work, check };
        sides.push(Box::new(Engine { name, open, manner, verifies, setup }));
    }
    #[cfg(not(feature = "rocksdb"))]
    skipped.push(("rocksdb".to_owned(), "built without the feature `rocksdb`".to_owned()));
    let mut programs: Vec<(&str, anyhow::Result<Box<dyn Side>>)> = Vec::new();
    if args.is_selected(fio::NAME) {
        programs.push((fio::NAME, fio::Fio::find(work, dir)));
    }
    for name in [nixl::VERIFIED, nixl::BARE] {
        if args.is_selected(name) {
            programs.push((name, nixl::Nixl::start(name, work, dir, &args.python)));
        }
    }
    for (name, side) in programs {
        match side {
            Ok(side) => sides.push(side),
            Err(why) => skipped.push((name.to_owned(), format!("{why:#}"))),
        }
    }
    sides.retain(|side| args.is_selected(side.name()));
    skipped.retain(|(side, _)| args.is_selected(side));
    (sides, skipped)
}

/// The stores that run in this process.
fn engines(work: &Work) -> Vec<(&'static str, Open, SideProperties, bool)> {
    let batches = format!("{} batches of {}", work.depth, work.batch);
    let threads = format!("{batches}, by {} threads", work.threads);
    let manner = |in_flight: &str, verified_by: &str, page_cache: bool| SideProperties {
        in_flight: in_flight.to_owned(),
        verified_by: verified_by.to_owned(),
        page_cache,
    };
    let harness = "the harness, xxh3";
    vec![
        ("pagelith", pagelith::open as Open, manner(&batches, "itself, xxh3-128", false), true),
        ("foyer io_uring", foyer::open_uring, manner(&batches, "itself, xxh64", false), true),
        ("foyer psync", foyer::open_psync, manner(&batches, "itself, xxh64", false), true),
        ("fjall", fjall::open, manner(&threads, "itself, xxh3-128", true), true),
        #[cfg(feature = "rocksdb")]
        ("rocksdb", rocksdb::open, manner(&threads, "itself, crc32c", false), true),
        ("file per object", file_per_object::open, manner(&threads, harness, false), false),
    ]
}
