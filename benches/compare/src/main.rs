//! Runs the same work through Pagelith, through similar stores, and through fio as the limit.
//! Objects are put until they are durable, then read cold in random order; every value is verified,
//! and CPU of the whole process is counted.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark is an edge: it has the real clock, threads and files"
)]

mod args;
mod check;
mod contents;
mod cost;
mod engine;
mod peer;
mod peers;
mod pool;
mod readers;
mod result;
mod rng;
mod table;
mod work;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;

use self::args::{Args, Command, RunArgs};
use self::contents::Contents;
use self::result::{Header, Line};
use self::work::Work;

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Run(args) => run(&args),
        Command::Table { results } => show(&results),
    }
}

/// Measures, writes the result of each round when it ends, and prints the table.
fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut results = File::create(&args.results).context("cannot write the results")?;
    let mut keep = |line: &Line| -> anyhow::Result<()> {
        writeln!(results, "{}", serde_json::to_string(line)?)?;
        Ok(())
    };
    keep(&Line::Header(Header::of_this_run(args)))?;
    let dir = tempfile::Builder::new().prefix("pagelith-compare").tempdir_in(&args.dir)?;
    for object_bytes in args.sizes() {
        let work = Work::new(args, object_bytes);
        let size = work.shown_size();
        eprintln!("{size}: making {} objects", work.objects);
        let contents = Arc::new(Contents::new(&work)?);
        let (mut sides, skipped) = peers::sides(args, &work, &contents, dir.path());
        for (side, why) in skipped {
            eprintln!("{size}: {side} skipped: {why}");
            keep(&Line::Skipped { object_bytes, side, why })?;
        }
        for round in 0..args.rounds {
            // Each round starts with another side.
            if round > 0 {
                sides.rotate_left(1);
            }
            for side in &mut sides {
                let (name, manner) = (side.name().to_owned(), side.manner());
                let of = side.round(round).with_context(|| format!("{name} failed"))?;
                eprintln!(
                    "{size}: round {} of {}: {name}: put {:.2}, get {:.2} GB/s, {} wrong, {} absent",
                    round + 1,
                    args.rounds,
                    of.put.gb_per_s,
                    of.get.gb_per_s,
                    of.wrong,
                    of.absent
                );
                keep(&Line::Round { object_bytes, round, side: name, manner, of })?;
            }
        }
    }
    drop(results);
    show(&args.results)
}

fn show(results: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(results).context("cannot read the results")?;
    print!("{}", table::of_lines(&text)?);
    Ok(())
}
