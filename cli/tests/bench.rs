//! `bench`, end to end, with sizes that take a moment. What it measures is not judged here.

mod common;

use common::pagelith;

fn bench(args: &[&str]) -> serde_json::Value {
    let small = [
        "bench",
        "--json",
        "--object-bytes=64KiB",
        "--batch=8",
        "--data=8MiB",
        "--seconds=0.2",
        "--rounds=2",
    ];
    let ran = pagelith(&[&small, args].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

#[test]
fn every_tier_and_operation_is_measured_beside_its_limit() {
    for (tier, op, limit) in [
        ("dram", "get", "copy and checksum"),
        ("dram", "put", "memcpy"),
        ("ssd", "get", "bare reads"),
        ("ssd", "put", "bare writes and a sync"),
    ] {
        let json = bench(&["--tier", tier, "--op", op]);
        assert_eq!(json["limit_name"], limit, "{json}");
        let rate = |side: &str| json[side]["gb_per_s"].as_f64().unwrap();
        assert!(rate("store") > 0.0 && rate("limit") > 0.0, "{json}");
        let ratio = rate("store") / rate("limit");
        // All three were rounded to four decimals: a bound in parts alone fails for a ratio near nothing, as an
        // unoptimized build of the store has beside an optimized `memcpy`.
        assert!((json["ratio"].as_f64().unwrap() - ratio).abs() < 0.0001 + 0.01 * ratio, "{json}");
    }
    let json = bench(&["--tier=dram", "--op=exists"]);
    assert!(json["store"]["objects_per_s"].as_f64().unwrap() > 0.0 && json["limit"].is_null(), "{json}");
}

#[test]
fn a_named_directory_is_filled_once() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--dir={}", dir.path().display());
    let args = ["--tier=ssd", "--op=get", &flag, "--in-flight=2"];
    assert_eq!(bench(&args)["in_flight"], 2);
    assert_eq!(bench(&args)["op"], "get");
}

#[test]
fn bad_sizes_are_named() {
    let ran = pagelith(&["bench", "--tier=ssd", "--op=get", "--object-bytes=1MiB", "--data=4MiB"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("--data must hold at least one batch"), "{ran:?}");
    let ran = pagelith(&["bench", "--tier=ssd", "--op=get", "--seconds=0"]);
    assert!(ran.stderr.contains("--seconds=0"), "{ran:?}");
}
