//! `replay --model`: pools as groups, its output, its checks and its errors.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::path::Path;

use common::{ProgramOutput, pagelith};
use serde_json::{Value, json};

const DEEPSEEK: &str = "--model=deepseek-v3.2+deepseek-v3.2-mtp";
const QWEN: &str = "--model=qwen3-next";
/// A trailing pool of two pages per request, and a base group of one pool.
const WINDOW: &str = "--model=gpt-oss-20b";

/// A small store; with each model the small workload uses both of its tiers.
const SMALL: [&str; 7] = [
    "replay",
    "--json",
    "--requests=300",
    "--seed=3",
    "--dram=8MiB",
    "--ssd=64MiB",
    "--staging=2MiB",
];

/// Run the small workload; these flags replace its own.
fn replay(more: &[&str]) -> ProgramOutput {
    let name = |flag: &str| flag.split('=').next().map(str::to_owned);
    let own = SMALL.into_iter().filter(|own| !more.iter().any(|flag| name(flag) == name(own)));
    pagelith(&own.chain(more.iter().copied()).collect::<Vec<_>>())
}

/// The report of a run without problems.
fn clean_report(more: &[&str]) -> Value {
    let ran = replay(more);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!((&json["wrong_bytes"], &json["partial_groups"]), (&0.into(), &0.into()), "{json}");
    let missed: u64 =
        json["misses"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let hits = number(&json["prefix_hits"]["dram"]) + number(&json["prefix_hits"]["ssd"]);
    assert_eq!(
        hits + missed,
        number(&json["pages_requested"]),
        "every page is a hit or has one cause: {json}"
    );
    json
}

fn number(json: &Value) -> u64 {
    json.as_u64().unwrap_or_else(|| panic!("{json}"))
}

fn refused(args: &[&str]) -> String {
    let ran = pagelith(&[&["replay"], args].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    ran.stderr
}

#[test]
fn all_pools_hit_in_both_tiers_and_after_a_reopen() {
    for (model, scale, pools) in [
        (DEEPSEEK, "--scale=64", &["draft", "draft_indexer", "indexer", "kv"][..]),
        (QWEN, "--scale=512", &["kv", "mamba"]),
        (WINDOW, "--scale=64", &["kv", "swa"]),
    ] {
        let json = clean_report(&[model, scale, "--reopen-at=150"]);
        assert!(json["reopen_ms"].as_f64().unwrap() > 0.0, "{json}");
        assert_eq!(json["model"], model.trim_start_matches("--model="), "{json}");
        let found: Vec<&String> = json["pools"].as_object().unwrap().keys().collect();
        assert_eq!(found, pools, "{json}");
        for pool in pools {
            let counts = &json["pools"][pool];
            assert!(
                number(&counts["hits"]) > 0 && number(&counts["bytes_put"]) > 0,
                "{pool} {json}"
            );
        }
        for tier in ["dram", "ssd"] {
            assert!(number(&json["prefix_hits"][tier]) > 0, "{tier} {json}");
        }
        assert!(number(&json["groups"]["committed"]) > 0, "{json}");
    }
}

#[test]
fn trailing_objects_wait_for_their_pages_and_limit_the_prefix() {
    let json = clean_report(&[QWEN, "--scale=512"]);
    let groups = &json["groups"];
    assert!(number(&groups["attached_waiting"]) > 0, "checkpoints come before their page: {json}");
    assert_eq!((&groups["waiting_dropped"], &groups["refused"]), (&0.into(), &0.into()), "{json}");
    // Pages of answers have no checkpoint, nor has the page where a session forks from a shared
    // prompt.
    assert!(
        number(&json["stops"]["cut_short"]) > 0 && number(&json["misses"]["no_stop"]) > 0,
        "{json}"
    );
    let every_page = clean_report(&[QWEN, "--scale=512", "--pools=kv"]);
    let ratio = |json: &Value| json["prefix_hit_ratio"].as_f64().unwrap();
    assert!(ratio(&json) > 0.3 && ratio(&every_page) > ratio(&json), "{json} {every_page}");
    assert!(every_page["misses"]["no_stop"].is_null(), "{every_page}");
}

#[test]
fn json_keys_of_the_model_follow_the_common_keys() {
    let ran = replay(&[QWEN, "--scale=512", "--requests=20"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (plain, of_model) =
        ran.stdout.split_once(r#","model":"qwen3-next","page_bytes":"#).expect("model");
    assert!(plain.starts_with(r#"{"requests":20,"#) && plain.contains(r#","io":"#), "{ran:?}");
    // 2 * 786,432 of k and v, 75,497,472 and 1,769,472 of states, by 512.
    assert!(of_model.starts_with(r#"153984,"pools":{"kv":{"hits":"#), "{ran:?}");
    for key in [r#","groups":{"committed":"#, r#","stops":{"legal":"#] {
        assert!(of_model.contains(key), "{key} {ran:?}");
    }
    let without = replay(&["--requests=20"]).json();
    for key in ["model", "page_bytes", "pools", "groups", "stops"] {
        assert!(without[key].is_null(), "{key} {without}");
    }
}

#[test]
fn table_has_a_row_for_each_pool() {
    let ran =
        pagelith(&["replay", "--requests=50", "--dram=8MiB", "--ssd=0", DEEPSEEK, "--scale=64"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for text in
        ["deepseek-v3.2+deepseek-v3.2-mtp", "pool draft_indexer", "committed", "groups dropped"]
    {
        assert!(ran.stdout.contains(text), "{text} {ran:?}");
    }
}

#[test]
fn ranks_scale_and_layout_determine_page_bytes() {
    let bytes = |flags: &[&str]| {
        let common = ["--requests=3", "--ssd=0", "--dram=1GiB"];
        let json = clean_report(&[&common, flags].concat());
        number(&json["page_bytes"])
    };
    let llama = bytes(&["--model=llama-3-8b"]);
    assert_eq!(llama, 8 << 20);
    assert_eq!(bytes(&["--model=llama-3-8b", "--tp=4"]), llama / 4);
    assert_eq!(bytes(&["--model=llama-3-8b", "--scale=64", "--layout=page_unified"]), llama / 64);
    assert_eq!(bytes(&["--model=llama-3-8b", "--scale=1099511627776"]), 2);
    assert_eq!(bytes(&["--model=llama-3-8b", "--scale=1099511627776", "--layout=page_unified"]), 1);
}

#[test]
fn incomplete_block_is_not_a_page_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    let line = |tokens: u32, ids: &str| {
        format!(
            "{{\"timestamp\": 1, \"input_length\": {tokens}, \"output_length\": 3, \"hash_ids\": [{ids}]}}\n"
        )
    };
    // The second turn continues where the first was cut; the third is shorter than a block.
    let text = [line(1100, "1, 2, 3"), line(1600, "1, 2, 4, 5"), line(40, "6"), line(1024, "1, 2")]
        .concat();
    std::fs::write(&path, text).unwrap();
    let trace = format!("--trace={}", path.display());
    let json = clean_report(&[QWEN, "--scale=512", &trace]);
    assert_eq!((&json["requests"], &json["pages_requested"]), (&4.into(), &7.into()), "{json}");
    assert_eq!(
        json["prefix_hits"]["dram"], 4,
        "the checkpoint of the first turn serves two others: {json}"
    );
    let plain = replay(&[&trace]).json();
    assert_eq!(plain["pages_requested"], 10, "{plain}");
}

#[test]
fn store_filled_by_one_model_has_no_hits_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--dir={}", dir.path().join("store").display());
    let ratio = |flags: &[&str]| {
        let json = clean_report(&[&["--requests=100", &flag], flags].concat());
        json["prefix_hit_ratio"].as_f64().unwrap()
    };
    let first = ratio(&[QWEN, "--scale=512"]);
    assert_eq!(ratio(&[QWEN, "--scale=512"]), 1.0, "all pages are present, with their checkpoints");
    assert!(first < 1.0);
    // Without the checkpoints the groups have the same number of objects, but the pages are
    // different.
    assert!(ratio(&[QWEN, "--scale=512", "--pools=kv"]) < 1.0);
    assert!(ratio(&[DEEPSEEK, "--scale=512"]) < 1.0);
    let verified = pagelith(&["verify".as_ref(), dir.path().join("store").as_os_str()]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[test]
fn damaged_member_is_a_miss_and_never_a_partial_group() {
    for (model, scale) in [(DEEPSEEK, "--scale=64"), (QWEN, "--scale=512")] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let flag = format!("--dir={}", store.display());
        clean_report(&[model, scale, &flag, "--dram=0", "--requests=150"]);
        damage(&store);
        let json = clean_report(&[model, scale, &flag, "--dram=0", "--requests=150"]);
        assert!(number(&json["misses"]["damaged"]) > 0, "{json}");
    }
}

/// Flip bits in headers, payloads, padding and footers.
fn damage(store: &Path) {
    let segments = store.join("segments");
    let bytes = std::fs::metadata(&segments).unwrap().len();
    for at in (8192 + 77..bytes).step_by(90_021) {
        common::fixture::flip(&segments, at);
    }
}

#[test]
fn small_and_missing_tiers_work() {
    // The checkpoint takes most of the arena, so it cannot wait for its page and is put after it.
    let json = clean_report(&[QWEN, "--scale=64", "--dram=4MiB", "--ssd=64MiB", "--requests=40"]);
    assert!(number(&json["groups"]["attached"]) > 0, "{json}");
    clean_report(&[QWEN, "--scale=512", "--ssd=0", "--requests=100", "--dram=4MiB"]);
    clean_report(&[DEEPSEEK, "--scale=64", "--dram=0", "--requests=100", "--reopen-at=50"]);
}

#[test]
fn conflicting_flags_are_refused_with_their_names() {
    let cases: [(&[&str], &[&str]); 14] = [
        (&["--model=qwen4"], &["--model", "qwen4", "known are llama-3-8b", "qwen3-next"]),
        (&["--model=qwen3-next+draft"], &["--model", "deepseek-v3.2-mtp"]),
        (&[QWEN, "--tp=3"], &["attention.kv_heads", "3", "value=2"]),
        (&[QWEN, "--tp=0"], &["--tp"]),
        (&[QWEN, "--pools=kv,mambo"], &["--pools=\"mambo\"", "kv, mamba"]),
        (&[QWEN, "--pools=kv,kv"], &["named twice", "--pools=\"kv\""]),
        (&[QWEN, "--pools=mamba"], &["--pools=mamba", "every page"]),
        (&[QWEN, "--object-bytes=4KiB"], &["--model", "--object-bytes"]),
        (&[QWEN, "--layout=page_head"], &["layout", "mamba", "page_head"]),
        (
            &["--model=deepseek-v3", "--layout=page_first_kv_spilt"],
            &["did you mean page_first_kv_split?"],
        ),
        (&[QWEN, "--scale=0"], &["--scale"]),
        (&["--tp=2"], &["--model"]),
        (&["--scale=2", "--pools=kv"], &["--model"]),
        // A checkpoint is larger than the segments of the store.
        (&[QWEN, "--requests=1"], &["too large", "mamba/temporal", "length=75497472", "max="]),
    ];
    for (flags, expected) in cases {
        let message = refused(flags);
        for text in expected {
            assert!(message.contains(text), "{flags:?} wants {text:?}: {message}");
        }
    }
}

#[test]
fn run_without_a_model_has_the_recorded_counts() {
    let json = clean_report(&["--object-bytes=8KiB", "--ssd=0", "--dram=4MiB", "--policy=fifo"]);
    // The counts from before models existed; without an SSD tier they do not depend on time.
    assert_eq!(json["prefix_hits"], json!({"dram": 2169, "ssd": 0, "remote": 0}), "{json}");
    assert_eq!(json["misses"], json!({"absent": 1915, "stranded": 483}), "{json}");
    assert_eq!(json["bytes_put"], 31_375_360, "{json}");
}
