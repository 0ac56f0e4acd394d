//! `pagelith inspect`: the geometry and the content of a store, without payloads. Uses `layouts`
//! only. A store in use can be inspected too, in its state at that moment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};
use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::format;
use pagelith_layouts::ids::{NamespaceId, SegmentId};
use pagelith_layouts::manifest::Manifest;
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::scan::ScanItem;
use serde::Serialize;

use crate::exit::RunStatus;
use crate::on_disk::segment::{Footer, Head, Segment};
use crate::on_disk::{LockMode, OnDisk, dir_order, display_dirs};
use crate::output::{log, out};
use crate::verify::finding::Severity;
use crate::verify::report::{manifest_findings, newer_format};

/// Show the metadata of a store: geometry, segments, namespaces, checkpoints.
///
/// Exit status: 0; 1 if a part that it read was damaged (`verify` reads everything); 2 if there is
/// no store.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith inspect /mnt/nvme/kv")]
pub(crate) struct InspectArgs {
    /// Directories of the store, in the order of its configuration
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The order of the fields is the order of the JSON keys.
#[derive(Debug, Serialize)]
struct Inspection {
    store: String,
    format: u16,
    in_use: bool,
    owner: Option<String>,
    dirs: u32,
    capacity_bytes: u64,
    segment_bytes: u64,
    segment_count: u32,
    block_bytes: u32,
    objects_max: u64,
    namespaces_max: u32,
    segments: Vec<SegmentRow>,
    namespaces: Vec<NamespaceRow>,
    checkpoints: Vec<CheckpointRow>,
    damage: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct SegmentRow {
    segment: u32,
    incarnation: u64,
    order: u64,
    state: &'static str,
    records: u64,
    objects: u64,
    bytes: u64,
    min_sequence: Option<u64>,
    max_sequence: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NamespaceRow {
    namespace: String,
    generation: u64,
    /// Objects on disk of the current generation, dead copies included.
    objects: u64,
    /// Objects on disk of older generations.
    objects_cleared: u64,
}

#[derive(Debug, Serialize)]
struct CheckpointRow {
    file: String,
    state: String,
    serial: Option<u64>,
    entries: Option<u64>,
    replay_from: Option<u64>,
    clean: Option<bool>,
}

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<RunStatus> {
    let disk = OnDisk::open(&args.dirs, LockMode::Probe)?;
    if let Some(path) = &disk.locked {
        log!("the store is in use, and may change while it is read file={}", path.display());
    }
    disk.require_all_dirs()?;
    dir_order::check(&disk)?;
    let (manifest, damage) = match disk.manifest() {
        Ok(found) => found,
        Err(damage) => {
            newer_format(&disk, &damage)?;
            for finding in manifest_findings(&disk, &damage) {
                log!("{finding}");
            }
            log!("no copy of the manifest can be used dir={}", display_dirs(&args.dirs));
            return Ok(RunStatus::Problems);
        }
    };
    let mut inspection = Inspection::new(&disk, &manifest);
    let findings = manifest_findings(&disk, &damage);
    let wrong = findings.iter().filter(|f| f.severity == Severity::Wrong);
    inspection.damage.extend(wrong.map(ToString::to_string));
    inspection.read(&disk, &manifest);
    if args.json {
        out!("{}", serde_json::to_string(&inspection)?)?;
    } else {
        out!("{}", inspection.text().trim_end())?;
    }
    Ok(if inspection.damage.is_empty() { RunStatus::Clean } else { RunStatus::Problems })
}

/// Number of objects of each namespace, by generation.
type ObjectCounts = BTreeMap<NamespaceId, BTreeMap<u64, u64>>;

impl Inspection {
    fn new(disk: &OnDisk, manifest: &Manifest) -> Inspection {
        let s = manifest.superblock();
        Inspection {
            store: manifest.store().to_string(),
            format: format::VERSION,
            in_use: disk.locked.is_some(),
            owner: disk.owner(),
            dirs: s.dir_count,
            capacity_bytes: s.capacity_bytes,
            segment_bytes: s.segment_bytes,
            segment_count: s.segment_count,
            block_bytes: s.block_bytes,
            objects_max: s.objects_max,
            namespaces_max: s.namespaces_max,
            segments: Vec::new(),
            namespaces: Vec::new(),
            checkpoints: Vec::new(),
            damage: Vec::new(),
        }
    }

    fn read(&mut self, disk: &OnDisk, manifest: &Manifest) {
        let mut counts = ObjectCounts::new();
        for (namespace, _) in manifest.generations() {
            counts.entry(namespace).or_default();
        }
        for id in (0..self.segment_count).map(SegmentId) {
            let row = self.segment_row(disk, manifest, id, &mut counts).unwrap_or_else(|error| {
                self.damage.push(format!("{error:#}"));
                SegmentRow { segment: id.0, state: "unreadable", ..SegmentRow::default() }
            });
            self.segments.push(row);
        }
        for (namespace, generations) in counts {
            let current = manifest.generation(namespace).0;
            let objects = generations.get(&current).copied().unwrap_or(0);
            let all: u64 = generations.values().sum();
            let namespace = namespace.to_string();
            let row = NamespaceRow {
                namespace,
                generation: current,
                objects,
                objects_cleared: all - objects,
            };
            self.namespaces.push(row);
        }
        for which in 0..2 {
            self.checkpoint_row(disk, manifest, which);
        }
        let unreadable = disk.unreadable().into_iter().map(|((path, at), error)| {
            format!("block cannot be read: {error} offset={at} file={}", path.display())
        });
        self.damage.extend(unreadable);
    }

    fn segment_row(
        &mut self,
        disk: &OnDisk,
        manifest: &Manifest,
        id: SegmentId,
        counts: &mut ObjectCounts,
    ) -> anyhow::Result<SegmentRow> {
        let mut row = SegmentRow { segment: id.0, state: "free", ..SegmentRow::default() };
        let Some(segment) = Segment::load(disk, manifest, id)? else { return Ok(row) };
        (row.incarnation, row.order) = (segment.identity.incarnation.0, segment.order.0);
        if let Head::Broken(error) = &segment.head {
            self.damage.push(format!("{error} {id} offset=0"));
        }
        if let Footer::Broken { error, from, .. } = &segment.footer
            && segment.has_damaged_footer()
        {
            self.damage.push(format!("{error} {id} offset={from}"));
        }
        let mut count = |namespace, generation: u64, kind: u8, sequence: u64| {
            if kind == RecordKind::Data as u8 {
                *counts.entry(namespace).or_default().entry(generation).or_default() += 1;
                row.objects += 1;
            }
            row.min_sequence = Some(row.min_sequence.map_or(sequence, |least| least.min(sequence)));
            row.max_sequence = row.max_sequence.max(Some(sequence));
        };
        if let Footer::Sealed { facts, entries } = &segment.footer {
            let mut last = None;
            for e in entries {
                count(e.key.namespace(), e.generation, e.kind, e.sequence);
                row.records += u64::from(last != Some(e.record_sector));
                last = Some(e.record_sector);
            }
            (row.state, row.bytes) = ("sealed", facts.data_end - ALIGN);
            return Ok(row);
        }
        segment.scan(disk, &mut |found| {
            let ScanItem::Record { record, payload: Ok(()) } = found else { return };
            let (facts, kind) = (record.facts(), record.facts().kind as u8);
            record
                .members()
                .for_each(|_| count(facts.namespace, facts.generation.0, kind, facts.sequence.0));
            row.records += 1;
            row.bytes += align_up(record.record_bytes());
        })?;
        // The next incarnation is in the manifest but has no record yet: the segment is ready to be
        // opened.
        row.state = if row.records > 0 { "open" } else { "ready" };
        Ok(row)
    }

    fn checkpoint_row(&mut self, disk: &OnDisk, manifest: &Manifest, which: usize) {
        let file = disk.checkpoint_path(which).display().to_string();
        let none = |file, state| CheckpointRow {
            file,
            state,
            serial: None,
            entries: None,
            replay_from: None,
            clean: None,
        };
        let row = match disk.checkpoint(which, manifest.store()) {
            Ok(None) => none(file, "missing".to_owned()),
            Err(error) => {
                self.damage.push(format!("{error:#}"));
                none(file, "unreadable".to_owned())
            }
            Ok(Some(checkpoint)) => match checkpoint.head {
                Ok(facts) => CheckpointRow {
                    file,
                    state: "written".to_owned(),
                    serial: Some(facts.serial),
                    entries: Some(facts.entry_count),
                    replay_from: Some(facts.replay_from.0),
                    clean: Some(facts.clean),
                },
                Err(pagelith_layouts::error::FormatError::Empty { .. }) => {
                    none(file, "never written".to_owned())
                }
                Err(error) => {
                    self.damage.push(format!("{error} offset=0 file={file}"));
                    none(file, "damaged".to_owned())
                }
            },
        };
        self.checkpoints.push(row);
    }

    fn text(&self) -> String {
        let mut out = format!(
            "store {}\nformat {}\nowner {}{}\ngeometry dirs={} capacity_bytes={} segment_bytes={} segments={} \
             block_bytes={} objects_max={} namespaces_max={}\n",
            self.store,
            self.format,
            self.owner.as_deref().unwrap_or("unknown"),
            if self.in_use { " (in use)" } else { "" },
            self.dirs,
            self.capacity_bytes,
            self.segment_bytes,
            self.segment_count,
            self.block_bytes,
            self.objects_max,
            self.namespaces_max,
        );
        out += &self.segment_table();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["namespace", "generation", "objects", "cleared"]);
        for n in &self.namespaces {
            let (generation, objects) = (n.generation.to_string(), n.objects.to_string());
            table.add_row([
                n.namespace.clone(),
                generation,
                objects,
                n.objects_cleared.to_string(),
            ]);
        }
        out += &format!("\n\n{table}\n");
        let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        for c in &self.checkpoints {
            let (serial, entries, replay) =
                (number(c.serial), number(c.entries), number(c.replay_from));
            let clean = c.clean.map_or("-".to_owned(), |c| c.to_string());
            out += &format!(
                "\ncheckpoint {} serial={serial} entries={entries} replay_from={replay} clean={clean} file={}",
                c.state, c.file
            );
        }
        out += "\n";
        out.extend(self.damage.iter().map(|d| format!("damaged: {d}\n")));
        out
    }

    fn segment_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let names = [
            "segment",
            "incarnation",
            "order",
            "state",
            "records",
            "objects",
            "bytes",
            "min",
            "max",
        ];
        table.set_header(names);
        let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        for s in &self.segments {
            let [id, incarnation, order] =
                [s.segment.into(), s.incarnation, s.order].map(|n: u64| n.to_string());
            let [records, objects, bytes] = [s.records, s.objects, s.bytes].map(|n| n.to_string());
            let (state, least, most) =
                (s.state.to_owned(), number(s.min_sequence), number(s.max_sequence));
            table.add_row([id, incarnation, order, state, records, objects, bytes, least, most]);
        }
        table.to_string()
    }
}
