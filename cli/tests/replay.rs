//! `replay`, end to end: its output, its checks and its errors.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::path::Path;

use common::{ProgramOutput, pagelith, pagelith_with};

/// A small store; the small workload uses both of its tiers.
const SMALL: [&str; 10] = [
    "replay",
    "--json",
    "--requests=300",
    "--dram=8MiB",
    "--ssd=40MiB",
    "--object-bytes=8KiB",
    "--seed=3",
    "--staging=2MiB",
    "--policy=lru",
    "--ssd-policy=fifo",
];

/// Run the small workload; these flags replace its own.
fn replay(more: &[&str]) -> ProgramOutput {
    let name = |flag: &str| flag.split('=').next().map(str::to_owned);
    let own = SMALL.into_iter().filter(|own| !more.iter().any(|flag| name(flag) == name(own)));
    pagelith(&own.chain(more.iter().copied()).collect::<Vec<_>>())
}

/// The error of a run that was refused.
fn refused(args: &[&str]) -> String {
    let ran = pagelith(args);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    ran.stderr
}

fn keys(json: &str) -> Vec<String> {
    // The order of keys in the text is documented, and the map of serde_json is sorted.
    let mut depth = 0;
    let mut found = Vec::new();
    for part in json.split_inclusive(['{', '}', ',']) {
        if depth == 1
            && let Some((name, _)) = part.trim_start().split_once("\":")
        {
            found.push(name.trim_start_matches('"').to_owned());
        }
        depth += part.matches('{').count();
        depth -= part.matches('}').count();
    }
    found
}

#[test]
fn json_has_the_documented_keys_and_no_problems() {
    let ran = replay(&[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let expected = "requests pages_requested prefix_hits prefix_hit_ratio misses absent_objects bytes_put bytes_to_device \
                    write_amplification wrong_bytes partial_groups busy_waits get_gb_per_s put_gb_per_s \
                    cpu_s_per_gb get_batch_ms dram_peak_bytes rss_peak_bytes reopen_ms io";
    assert_eq!(keys(&ran.stdout).join(" "), expected);
    let json = ran.json();
    let number = |name: &str| json[name].as_u64().unwrap_or_else(|| panic!("{name} {json}"));
    assert_eq!(
        (number("wrong_bytes"), number("partial_groups"), number("requests")),
        (0, 0, 300),
        "{json}"
    );
    let (dram, ssd) = (
        json["prefix_hits"]["dram"].as_u64().unwrap(),
        json["prefix_hits"]["ssd"].as_u64().unwrap(),
    );
    assert!(dram > 0 && ssd > 0, "both tiers hit: {json}");
    let missed: u64 =
        json["misses"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(
        dram + ssd + missed,
        number("pages_requested"),
        "every page is a hit or has one cause: {json}"
    );
    assert_eq!(number("bytes_put") % (2 * 8192), 0);
    assert!(number("bytes_to_device") > 0 && number("dram_peak_bytes") <= 8 << 20, "{json}");
    assert!(json["reopen_ms"].is_null(), "{json}");
    assert!(["uring", "blocking"].contains(&json["io"].as_str().unwrap()), "{json}");
    assert!(ran.stderr.contains("store made io="), "{ran:?}");
}

/// Each requested page is a prefix hit, or a miss of exactly one cause.
fn assert_every_page_is_accounted_for(json: &serde_json::Value) {
    let hits = ["dram", "ssd"].map(|tier| json["prefix_hits"][tier].as_u64().unwrap());
    let missed: u64 =
        json["misses"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(hits[0] + hits[1] + missed, json["pages_requested"].as_u64().unwrap(), "{json}");
}

#[test]
fn pages_after_a_missing_page_are_stranded_misses() {
    // FIFO evicts the heads of chains first.
    let json = replay(&["--policy=fifo", "--ssd=0", "--dram=4MiB"]).json();
    assert!(json["misses"]["stranded"].as_u64().unwrap() > 0, "{json}");
    assert_every_page_is_accounted_for(&json);
    assert_eq!(json["wrong_bytes"], 0, "{json}");
}

#[test]
fn output_without_json_is_a_table_and_a_plot() {
    let args: Vec<&str> = SMALL.into_iter().filter(|a| *a != "--json").collect();
    let ran = pagelith(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for text in ["prefix hits in DRAM", "wrong bytes", "by request: memory", "by request: ssd"] {
        assert!(ran.stdout.contains(text), "{text} {ran:?}");
    }
}

#[test]
fn seed_determines_the_requests() {
    let pages = |seed: &str| {
        let ran = pagelith(&[
            "replay",
            "--json",
            "--requests=50",
            "--ssd=0",
            "--dram=64MiB",
            "--object-bytes=4KiB",
            seed,
        ]);
        ran.json()["pages_requested"].as_u64().unwrap()
    };
    assert_eq!(pages("--seed=5"), pages("--seed=5"));
    assert_ne!(pages("--seed=5"), pages("--seed=6"));
}

#[test]
fn either_tier_can_be_disabled() {
    let dram_only = replay(&["--ssd=0"]);
    assert_eq!(dram_only.code, Some(0), "{dram_only:?}");
    let json = dram_only.json();
    assert_eq!((&json["io"], &json["bytes_to_device"]), (&"off".into(), &0.into()), "{json}");
    assert_eq!(json["prefix_hits"]["ssd"], 0, "{json}");
    let dir = tempfile::tempdir().unwrap();
    let with_dir = replay(&["--ssd=0", "--dir", &dir.path().join("s").to_string_lossy()]);
    assert!(
        with_dir.code == Some(2) && with_dir.stderr.contains("ssd.bytes: must be above 0"),
        "{with_dir:?}"
    );
    let ssd_only = replay(&["--dram=0"]);
    assert_eq!(ssd_only.code, Some(0), "{ssd_only:?}");
    assert!(ssd_only.json()["prefix_hits"]["ssd"].as_u64().unwrap() > 0, "{ssd_only:?}");
}

#[test]
fn given_directory_is_kept_intact_with_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let flag = format!("--dir={}", store.display());
    let first = replay(&[&flag]).json();
    let verified = pagelith(&["verify".as_ref(), store.as_os_str()]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let inspected = pagelith(&["inspect".as_ref(), "--json".as_ref(), store.as_os_str()]);
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let sealed = inspected.json()["segments"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["state"] == "sealed")
        .count();
    assert!(sealed > 0, "{inspected:?}");
    let second = replay(&[&flag]);
    assert_eq!((second.code, &second.json()["wrong_bytes"]), (Some(0), &0.into()), "{second:?}");
    let ratio = |json: &serde_json::Value| json["prefix_hit_ratio"].as_f64().unwrap();
    assert!(ratio(&second.json()) > ratio(&first), "{second:?} {first}");
    let other_seed = replay(&[&flag, "--seed=4"]);
    assert_eq!(other_seed.json()["wrong_bytes"], 0, "{other_seed:?}");
    let bytes: u64 =
        std::fs::read_dir(&store).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 40 << 20, "bytes={bytes}");
}

#[test]
fn repeated_open_and_close_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--dir={}", dir.path().join("store").display());
    let first = replay(&[&flag, "--requests=200"]).json();
    assert!(first["prefix_hit_ratio"].as_f64().unwrap() < 1.0, "{first}");
    for _ in 0..12 {
        assert_eq!(replay(&[&flag, "--requests=1"]).code, Some(0));
    }
    let last = replay(&[&flag, "--requests=200"]).json();
    assert_eq!(last["prefix_hit_ratio"], 1.0, "{last}");
}

#[test]
fn damage_on_disk_is_found_by_verify_and_causes_misses_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let flag = format!("--dir={}", store.display());
    assert_eq!(replay(&[&flag, "--dram=0"]).code, Some(0));
    let segments = store.join("segments");
    let bytes = std::fs::metadata(&segments).unwrap().len();
    // Bits in headers, payloads, padding and footers.
    for at in (8192 + 77..bytes).step_by(50_021) {
        common::fixture::flip(&segments, at);
    }
    let verified = pagelith(&["verify".as_ref(), store.as_os_str()]);
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(verified.stdout.contains("checksum of payload block"), "{verified:?}");
    let json = replay(&[&flag, "--dram=0"]).json();
    assert_eq!((&json["wrong_bytes"], &json["partial_groups"]), (&0.into(), &0.into()), "{json}");
    assert!(json["misses"]["damaged"].as_u64().unwrap() > 0, "{json}");
    assert!(json["prefix_hits"]["ssd"].as_u64().unwrap() > 0, "{json}");
    assert_every_page_is_accounted_for(&json);
}

#[test]
fn replay_continues_after_a_reopen_without_close() {
    let ran = replay(&["--reopen-at=150"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert!(json["reopen_ms"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!((&json["wrong_bytes"], &json["partial_groups"]), (&0.into(), &0.into()), "{json}");
    assert!(ran.stderr.contains("store opened io="), "{ran:?}");
    let never = replay(&["--reopen-at=301"]);
    assert!(never.stderr.contains("fewer requests than --reopen-at requests=300"), "{never:?}");
}

#[test]
fn temporary_directory_is_empty_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().to_string_lossy().into_owned();
    let bad = dir.path().join("bad.jsonl");
    std::fs::write(&bad, "{\n").unwrap();
    let fine = pagelith_with(&SMALL, &[("TMPDIR", &tmp)]);
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let trace = format!("--trace={}", bad.display());
    let args = [&SMALL[..], &[&trace]].concat();
    let failed = pagelith_with(&args, &[("TMPDIR", &tmp)]);
    assert_eq!(failed.code, Some(2), "{failed:?}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["bad.jsonl"]);
}

#[test]
fn trace_is_replayed_and_invalid_lines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let line = |ids: &str| {
        format!(
            "{{\"timestamp\": 1, \"input_length\": 1024, \"output_length\": 3, \"hash_ids\": [{ids}]}}\n"
        )
    };
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let good = write(
        "good.jsonl",
        [line("1, 2"), line("1, 2, 3"), line("1, 4"), line("1, 2, 3")].concat(),
    );
    let json = replay(&["--trace", &good]).json();
    assert_eq!((&json["requests"], &json["pages_requested"]), (&4.into(), &10.into()), "{json}");
    assert_eq!(
        (&json["prefix_hits"]["dram"], &json["prefix_hit_ratio"]),
        (&6.into(), &0.6.into()),
        "{json}"
    );
    assert_eq!(json["misses"], serde_json::json!({"absent": 4}), "{json}");
    let two = replay(&["--trace", &good, "--requests=2"]).json();
    assert_eq!(two["requests"], 2, "{two}");

    let bad = write("bad.jsonl", [line("1"), line("2"), "oops\n".to_owned()].concat());
    let message = refused(&["replay", "--ssd=0", "--trace", &bad]);
    assert!(
        message.contains(&format!(
            "trace line is not JSON: expected value file={bad} line=3 column=1"
        )),
        "{message}"
    );
    let missing = write("missing.jsonl", line("1") + "{\"timestamp\": 0}\n");
    let message = refused(&["replay", "--ssd=0", "--trace", &missing]);
    assert!(
        message.contains("missing field `input_length`") && message.contains("line=2"),
        "{message}"
    );
    let empty = write("empty.jsonl", String::new());
    assert!(
        refused(&["replay", "--ssd=0", "--trace", &empty])
            .contains("there is no request to replay")
    );
    let absent = dir.path().join("absent").to_string_lossy().into_owned();
    assert!(refused(&["replay", "--trace", &absent]).contains("cannot read the trace file="));
}

#[test]
fn invalid_flags_settings_and_files_are_reported() {
    let message = refused(&["replay", "--dram=64M"]);
    assert!(message.contains("--dram") && message.contains("\"M\" is no unit"), "{message}");
    let message = refused(&["replay", "--policy=clock"]);
    assert!(message.contains("--policy") && message.contains("s3fifo"), "{message}");
    let message = refused(&["replay", "--object-bytes=0"]);
    assert!(message.contains("--object-bytes=0"), "{message}");
    let message = refused(&["replay", "--dram=0", "--ssd=0"]);
    assert!(message.contains("dram.bytes") && message.contains("no capacity"), "{message}");
    let message = refused(&["replay", "--dram=100TiB"]);
    assert!(message.contains("dram.bytes"), "{message}");
    let message = refused(&["replay", "--object-bytes=64MiB", "--requests=5"]);
    assert!(
        message.contains("too large") || message.contains("larger than a segment"),
        "{message}"
    );

    let ran = pagelith_with(&["replay"], &[("PAGELITH_DRAM__BITES", "1GiB")]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("PAGELITH_DRAM__BITES") && ran.stderr.contains("PAGELITH_DRAM__BYTES"),
        "{ran:?}"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "[dram]\nbites = 1\n").unwrap();
    let message = refused(&["replay", "--config", &file.to_string_lossy()]);
    assert!(
        message.contains("dram.bites: is not a setting; did you mean dram.bytes?"),
        "{message}"
    );
}

#[test]
fn flags_override_the_environment_and_that_overrides_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.json");
    std::fs::write(&file, r#"{"dram": {"bytes": "10MiB"}, "ssd": {"bytes": 0}}"#).unwrap();
    let base = [
        "replay",
        "--json",
        "--requests=2",
        "--object-bytes=4KiB",
        "--config",
        &*file.to_string_lossy(),
    ];
    let arena = |ran: ProgramOutput| {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let at = ran.stderr.find("arena=").unwrap();
        ran.stderr[at..].split_whitespace().next().unwrap().to_owned()
    };
    let env = [("PAGELITH_DRAM__BYTES", "11MiB")];
    assert_eq!(arena(pagelith(&base)), "arena=10MiB");
    assert_eq!(arena(pagelith_with(&base, &env)), "arena=11MiB");
    assert_eq!(arena(pagelith_with(&[&base[..], &["--dram=12MiB"]].concat(), &env)), "arena=12MiB");
}

#[test]
fn store_in_use_or_of_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let flag = format!("--dir={}", store.display());
    assert_eq!(replay(&[&flag]).code, Some(0));
    let held = std::fs::File::open(store.join("segments")).unwrap();
    held.lock().unwrap();
    let ran = replay(&[&flag]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("open elsewhere") && ran.stderr.contains(&*store.to_string_lossy()),
        "{ran:?}"
    );
    drop(held);
    let ran = replay(&[&flag, "--ssd=48MiB"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("ssd.bytes"), "{ran:?}");
    let stranger = dir.path().join("stranger");
    std::fs::create_dir(&stranger).unwrap();
    std::fs::write(stranger.join("letter.txt"), "dear").unwrap();
    let ran = replay(&[&format!("--dir={}", stranger.display())]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("letter.txt"), "{ran:?}");
    assert!(Path::new(&stranger.join("letter.txt")).exists());
}

#[test]
fn memory_stays_within_the_plan_while_the_writer_outruns_the_disk() {
    // A write buffer of two segments of 1 MiB, emptied by one small write at a time.
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("slow.toml");
    let text = "[ssd]\nsegment_bytes = \"1MiB\"\nwrite_depth = 1\nwrite_bytes = \"64KiB\"\nio = \"blocking\"\n";
    std::fs::write(&config, text).expect("written");
    let config = format!("--config={}", config.display());
    let json = replay(&["--dram=0", "--object-bytes=64KiB", "--requests=150", &config]).json();
    assert_eq!(json["wrong_bytes"], 0, "{json}");
    assert!(json["busy_waits"].as_u64().unwrap() > 0, "the writer never waited: {json}");
    // Arena, staging, index of 65,536 objects, and 128 MiB for everything else.
    let plan = (2 << 20) + (2 << 20) + 65_536 * 40;
    let rss = json["rss_peak_bytes"].as_u64().unwrap();
    assert!(rss <= plan + (128 << 20), "rss={rss} plan={plan}");
}
