//! `bench`, end to end, with small sizes. The measured values are not checked.

mod common;

use common::pagelith;

fn bench(args: &[&str]) -> serde_json::Value {
    let small = [
        "bench",
        "--json",
        "--object-bytes=64KiB",
        "--batch=8",
        "--data=32MiB",
        "--seconds=0.2",
        "--rounds=2",
    ];
    let ran = pagelith(&[&small, args].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

#[test]
fn every_tier_and_operation_is_measured_with_its_limit() {
    for (tier, op, what) in [
        ("dram", "get", "copy and checksum"),
        ("dram", "put", "memcpy"),
        ("dram", "mixed", "copy and checksum, then memcpy"),
        ("ssd", "get", "bare reads of the same extents"),
        ("ssd", "put", "bare writes and a sync"),
        ("ssd", "mixed", "bare reads and bare writes at once, and a sync"),
        ("dram", "exists", "a line of memory for each key"),
        ("ssd", "open", "a bare read of as many entries of the checkpoint"),
        ("ssd", "open-clean", "a bare read of as many entries of the checkpoint"),
    ] {
        let json = bench(&["--tier", tier, "--op", op]);
        assert_eq!(json["limit"]["what"], what, "{json}");
        let moves = matches!(op, "get" | "put" | "mixed");
        let rate = if moves { "gb_per_s" } else { "ops_per_s" };
        let (store, limit) = (json[rate].as_f64().unwrap(), json["limit"][rate].as_f64().unwrap());
        assert!(store > 0.0 && limit > 0.0, "{json}");
        // All three are rounded to four decimals, so a relative bound alone fails for a ratio near
        // 0, as of an unoptimized build of the store to an optimized `memcpy`.
        let ratio = store / limit;
        assert!((json["ratio"].as_f64().unwrap() - ratio).abs() < 0.0001 + 0.01 * ratio, "{json}");
        let times = ["p50_us", "p99_us", "p999_us"].map(|key| json[key].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{json}");
        let calls = json["syscalls_per_object"].as_f64().unwrap();
        assert_eq!(calls > 0.0, tier == "ssd", "{json}");
        assert_eq!(json["cpu_s_per_gb"].is_null(), !moves, "{json}");
        let verifies = (tier, op) == ("ssd", "get");
        assert_eq!(json["limit"]["checksum_cpu_s_per_gb"].is_number(), verifies, "{json}");
    }
}

#[test]
fn given_directory_is_filled_once() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--dir={}", dir.path().display());
    let args = ["--tier=ssd", "--op=get", &flag, "--depth=2"];
    assert_eq!(bench(&args)["depth"], 2);
    assert_eq!(bench(&args)["op"], "get");
}

#[test]
fn concurrent_writer_keeps_its_rate() {
    let args = ["--tier=ssd", "--op=mixed", "--depth=1"];
    let json = bench(&[&args[..], &["--write-rate=20MiB"]].concat());
    let written = json["written_gb_per_s"].as_f64().unwrap();
    // At most the requested rate; a slow machine may reach less.
    assert!(written > 0.0 && written <= 0.05, "{json}");
    assert!(bench(&args)["written_gb_per_s"].is_null());
}

#[test]
fn requested_baselines_are_measured_too() {
    for (op, beside, whats) in [
        (
            "--op=put",
            "--beside=as-written,as-put",
            [
                "bare writes of the store's pieces and a sync",
                "bare writes of copied and hashed pieces and a sync",
            ],
        ),
        (
            "--op=get",
            "--beside=hashed,hashed-elsewhere",
            [
                "bare reads of the same extents, and their checksums",
                "bare reads of the same extents, and checksums of other bytes",
            ],
        ),
    ] {
        let json = bench(&["--tier=ssd", op, beside]);
        assert!(json["limit"]["gb_per_s"].as_f64().unwrap() > 0.0, "{json}");
        for (at, what) in whats.iter().enumerate() {
            let side = &json["beside"][at];
            assert_eq!(side["what"], *what, "{json}");
            let of = |key: &str| side[key].as_f64().unwrap();
            let ratio = json["gb_per_s"].as_f64().unwrap() / of("gb_per_s");
            assert!((of("ratio") - ratio).abs() < 1e-3, "{json}");
        }
        assert!(bench(&["--tier=ssd", op])["beside"].is_null());
    }
    for (args, says) in [
        (["--op=get", "--data=32MiB"], "--beside=as-put"),
        (["--op=put", "--data=1MiB"], "less than one write"),
    ] {
        let all = [
            "bench",
            "--tier=ssd",
            "--beside=as-put",
            "--object-bytes=64KiB",
            "--batch=8",
            "--seconds=0.2",
        ];
        let ran = pagelith(&[&all[..], &args].concat());
        assert_ne!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains(says), "{ran:?}");
    }
}

#[test]
fn invalid_sizes_are_refused_with_their_flags() {
    let ran = pagelith(&["bench", "--tier=ssd", "--op=get", "--object-bytes=1MiB", "--data=4MiB"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("--data must hold at least one batch"), "{ran:?}");
    let ran = pagelith(&["bench", "--tier=ssd", "--op=get", "--seconds=0"]);
    assert!(ran.stderr.contains("--seconds=0"), "{ran:?}");
}
