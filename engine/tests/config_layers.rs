//! Precedence of layers, values of a valid configuration, and robustness of the parsers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelith::config::{
    Config, ConfigFormat, DramPin, DramPolicy, MachineLimits, NamespaceLimits, PeerConfig, Promote,
    RdmaConfig, Size, SsdAdmissionRule, SsdIo, SsdPolicy, WhenFull, fields,
};
use pagelith::layouts::ids::NamespaceId;
use pagelith::transport::address::Address;
use pagelith::transport::peer_address::BulkTransport;
use proptest::prelude::*;

fn facts(memory_bytes: u64) -> MachineLimits {
    MachineLimits::new(memory_bytes, "test".to_owned())
}

#[test]
fn code_wins_over_environment_over_file_over_defaults() {
    let file = "[dram]\nbytes = \"1GiB\"\n[read]\ndepth = 2\n[ssd]\nwrite_depth = 2";
    let environment =
        [("PAGELITH_READ__DEPTH", "3"), ("PAGELITH_SSD__WRITE_DEPTH", "3"), ("HOME", "/root")];
    // The order of the calls does not determine the precedence.
    let config = Config::builder()
        .set(|config| config.ssd.write_depth = 4)
        .env(environment)
        .file(ConfigFormat::Toml, file)
        .build()
        .unwrap();
    assert_eq!(config.deadline_ms, 30_000);
    assert_eq!(config.dram.bytes, Size::gib(1));
    assert_eq!(config.read.depth, 3);
    assert_eq!(config.ssd.write_depth, 4);
}

#[test]
fn wrong_value_is_refused_even_if_a_later_layer_replaces_it() {
    let error = Config::builder()
        .file(ConfigFormat::Toml, "read.depth = 0")
        .env([("PAGELITH_READ__DEPTH", "7")])
        .build()
        .unwrap_err();
    assert_eq!(error.to_string(), "read.depth: must be an integer between 1 and 1024, got=0");
}

#[test]
fn every_problem_of_every_layer_is_reported_at_once() {
    let file = "deadline_ms = 0\nnope.x = 1\nnope.y = 2\n[dram]\nbytes = \"64MB!\"\npromote = true\n\
                [staging]\nchunk_bytes = \"128MiB\"\n[ssd]\ndirs = [\"/a\"]";
    let error = Config::builder()
        .file(ConfigFormat::Toml, file)
        .env([("PAGELITH_LOG__BATCH_SUMMARY", "1"), ("PAGELITH_SSD_IO", "auto")])
        .set(|config| config.read.depth = 5000)
        .validate(&facts(1 << 40))
        .unwrap_err();
    let named: Vec<&str> = error.problems.iter().map(|problem| problem.field.as_str()).collect();
    let mut sorted = named.clone();
    sorted.sort_unstable();
    let mut expected = vec![
        "PAGELITH_SSD_IO",
        "deadline_ms",
        "dram.bytes",
        "dram.promote",
        "log.batch_summary",
        "nope.x",
        "nope.y",
        "read.depth",
        "ssd.bytes",
        "staging.bytes",
    ];
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(error.to_string().lines().count(), expected.len());
}

#[test]
fn misspelled_setting_is_not_also_reported_as_missing() {
    let text = "ssd.byts = \"1GiB\"\nssd.dirs = [\"/a\"]";
    let error =
        Config::builder().file(ConfigFormat::Toml, text).validate(&facts(1 << 40)).unwrap_err();
    assert_eq!(error.to_string(), "ssd.byts: is not a setting; did you mean ssd.bytes?");
}

#[test]
fn fields_set_by_code_are_checked_like_a_file() {
    let mut config = Config::default();
    config.staging.ratio = f64::NAN;
    config.ssd.segment_bytes = Some(Size::mib(3));
    config.dram.bytes = Size::from_bytes(u64::MAX);
    config.staging.bytes = Size::from_bytes(u64::MAX);
    config.index.max_objects = Some(u64::MAX);
    let error = config.validate(&facts(1 << 40)).unwrap_err();
    let named: Vec<&str> = error.problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        named,
        ["dram.bytes", "ssd.segment_bytes", "staging.bytes", "staging.ratio", "index.max_objects"]
    );
}

#[cfg(unix)]
#[test]
fn text_that_is_not_utf8_is_refused() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let broken = || OsString::from_vec(vec![b'/', 0xff]);
    let mut name = OsString::from("PAGELITH_");
    name.push(broken());
    let variables = [(OsString::from("PAGELITH_SSD__IO"), broken()), (name, OsString::new())];
    let error = Config::builder().env(variables).build().unwrap_err();
    assert_eq!(error.problems[0].field, "ssd.io");
    assert!(error.problems[0].message.contains("not UTF-8"), "{error}");
    assert_eq!(error.problems[1].field, "\"PAGELITH_/\u{fffd}\"");

    let mut config = Config::default();
    config.ssd.bytes = Size::gib(1);
    config.ssd.dirs = vec![PathBuf::from(broken())];
    config.remote.peers = vec![PeerConfig::from("unix:/a".parse::<Address>().unwrap())];
    let error = config.validate(&facts(1 << 40)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ssd.dirs: must be a list of at most 64 different directories, but entry 0 is not UTF-8"
    );
    assert!(config.to_json_string().contains("\u{fffd}"));
}

#[test]
fn variable_set_twice_is_refused() {
    let variables = [("PAGELITH_READ__DEPTH", "1"), ("PAGELITH_READ__DEPTH", "2")];
    let error = Config::builder().env(variables).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "read.depth: must be set once in the environment, got=twice env=PAGELITH_READ__DEPTH"
    );
}

#[test]
fn directories_in_the_environment_are_separated_by_commas_or_a_json_list() {
    for text in ["/a:b,/c", "[\"/a:b\", \"/c\"]"] {
        let config = Config::builder().env([("PAGELITH_SSD__DIRS", text)]).build().unwrap();
        assert_eq!(config.ssd.dirs, [PathBuf::from("/a:b"), PathBuf::from("/c")], "text={text}");
    }
}

#[test]
fn peers_from_environment_replace_those_of_file() {
    let file = "remote.peers = [\"unix:/a\", \"unix:/b\", \"unix:/c\"]";
    let named = |text: &str| {
        let builder = Config::builder().file(ConfigFormat::Toml, file);
        let config = builder.env([("PAGELITH_REMOTE__PEERS", text)]).build().unwrap();
        config
            .remote
            .peers
            .into_iter()
            .map(|peer| (peer.address.to_string(), peer.weight))
            .collect::<Vec<_>>()
    };
    let two = |weight| vec![("unix:/d".to_owned(), weight), ("tcp:[::1]:1".to_owned(), 1.0)];
    assert_eq!(named("unix:/d,tcp:[::1]:1"), two(1.0));
    assert_eq!(named("[{\"address\": \"unix:/d\", \"weight\": 3}, \"tcp:[::1]:1\"]"), two(3.0));
}

/// Variables that Kubernetes sets for Services named `pagelith` and `pagelith-store`, the first
/// with two ports, one of them named.
const SERVICE_LINKS: [(&str, &str); 17] = [
    ("PAGELITH_SERVICE_HOST", "10.96.7.9"),
    ("PAGELITH_SERVICE_PORT", "7411"),
    ("PAGELITH_SERVICE_PORT_METRICS_HTTP", "9100"),
    ("PAGELITH_PORT", "tcp://10.96.7.9:7411"),
    ("PAGELITH_PORT_7411_TCP", "tcp://10.96.7.9:7411"),
    ("PAGELITH_PORT_7411_TCP_PROTO", "tcp"),
    ("PAGELITH_PORT_7411_TCP_PORT", "7411"),
    ("PAGELITH_PORT_7411_TCP_ADDR", "10.96.7.9"),
    ("PAGELITH_PORT_9_UDP", "udp://[fd00::9]:9"),
    ("PAGELITH_PORT_9_UDP_ADDR", "fd00::9"),
    ("PAGELITH_PORT_9_SCTP_PROTO", "sctp"),
    ("PAGELITH_STORE_SERVICE_HOST", "10.96.7.10"),
    ("PAGELITH_STORE_SERVICE_PORT_KV", "7411"),
    ("PAGELITH_STORE_PORT", "tcp://10.96.7.10:7411"),
    ("PAGELITH_STORE_PORT_7411_TCP_ADDR", "10.96.7.10"),
    ("PAGELITH_PORT_SERVICE_HOST", "10.96.7.11"),
    ("PAGELITH_PORT_PORT_1_TCP", "tcp://10.96.7.11:1"),
];

#[test]
fn service_links_are_ignored_and_other_prefixed_variables_refused() {
    let config =
        Config::builder().env(SERVICE_LINKS).env([("PAGELITH_READ__DEPTH", "3")]).build().unwrap();
    assert_eq!(config.read.depth, 3);
    for (name, text) in [
        ("PAGELITH_PORT", "7411"),
        ("PAGELITH_SERVICE_PORT", "http"),
        ("PAGELITH_SERVICE_HOST", ""),
        ("PAGELITH_SERVICE_PORT_", "1"),
        ("PAGELITH_SERVICE_HOSTS", "10.96.7.9"),
        ("PAGELITH_PORT_7411", "tcp://10.96.7.9:7411"),
        ("PAGELITH_PORT_7411_TLS", "tcp://10.96.7.9:7411"),
        ("PAGELITH_PORT_7411_TCP", "7411"),
        ("PAGELITH_PORT_7411_TCP_NAME", "kv"),
        ("PAGELITH_EXPORT_1_TCP", "tcp://10.96.7.9:1"),
        ("PAGELITH_STORE", "tcp://10.96.7.9:7411"),
        ("PAGELITH_TRACE", "file"),
    ] {
        let error = Config::builder().env([(name, text)]).build().unwrap_err();
        assert_eq!(error.problems[0].field, name, "{error}");
    }
}

/// No setting resembles a service link, so that no variable of Kubernetes is taken for a setting.
#[test]
fn no_setting_has_the_shape_of_a_service_link() {
    for field in fields() {
        let name = field.env_name();
        let part = |part: &str| name.split('_').any(|word| word == part);
        assert!(!part("PORT") && !part("SERVICE"), "{name}");
    }
}

#[test]
fn every_setting_of_a_file_is_applied() {
    let text = r#"
        deadline_ms = 1
        close_timeout_ms = 9
        namespaces_max = 65536
        [namespaces]
        counted = 12
        limits = [
            { namespace = "00112233445566778899aabbccddeeff", dram_bytes = "1GB", idle_days = 7 },
            { namespace = "ff112233445566778899aabbccddeeff", ssd_bytes = "1TiB", when_full = "evict-own" },
        ]
        [dram]
        bytes = "3GB"
        policy = "fifo"
        promote = "never"
        verify_ratio = 0.125
        shared = true
        prefault = true
        pin = "cuda"
        [ssd]
        bytes = 1099511627776
        dirs = ["/a", "/b"]
        segment_bytes = "256 MiB"
        policy = "fifo"
        reinsert_ratio = 0
        io = "uring"
        write_depth = 64
        write_depth_reading = 7
        write_bytes = "64KiB"
        admission = "second-touch"
        min_reuse = 0.5
        thrift = 1.5
        write_budget = "3GiB"
        headers_bytes = "3MiB"
        checkpoint_segments = 0
        probe_ms = 250
        probe_max_ms = 1250
        quarantine_after = 9
        scrub_bytes_per_s = "5MiB"
        [remote]
        key = "/key"
        local_hostname = "node-7.example"
        [[remote.peers]]
        address = "tcp:10.0.0.1:7411"
        name = "a"
        weight = 2.5
        [[remote.peers]]
        address = "unix:/b"
        preferred = true
        [[remote.peers]]
        address = "rdma:c:7411"
        [[remote.peers]]
        address = "tcp:d:7411"
        transport = "auto"
        [rdma]
        serve = true
        devices = "mlx5_0, mlx5_1"
        gpu = 1
        gid_index = 3
        [staging]
        bytes = "8MiB"
        ratio = 0.5
        chunk_bytes = "96KiB"
        [groups]
        deadline_ms = 5
        [events]
        max = 77
        [index]
        max_objects = 1000
        [read]
        depth = 1024
        prefill_tokens_per_s = 20000
        page_tokens = 64
        [memory]
        reserve = 0
        [log]
        batch_summary = true
        [hints]
        trust = 0.75
    "#;
    let valid = Config::builder().file(ConfigFormat::Toml, text).validate(&facts(1 << 40)).unwrap();
    assert_eq!(
        (valid.deadline(), valid.close_timeout()),
        (Duration::from_millis(1), Duration::from_millis(9))
    );
    assert_eq!((valid.namespaces_max(), valid.namespaces_counted()), (65_536, 12));
    let limits = |id: &str| NamespaceLimits::of(NamespaceId::from_hex(id).unwrap());
    let mut first = limits("00112233445566778899aabbccddeeff");
    first.dram_bytes = Some(Size::from_bytes(1_000_000_000));
    first.idle_days = Some(7);
    let mut second = limits("ff112233445566778899aabbccddeeff");
    second.ssd_bytes = Some(Size::gib(1024));
    second.when_full = WhenFull::EvictOwn;
    assert_eq!(valid.namespace_limits(), [first, second]);
    assert_eq!((valid.dram_bytes(), valid.arena_bytes()), (3_000_000_000, 2_999_996_416));
    assert_eq!((valid.dram_policy(), valid.promote()), (DramPolicy::Fifo, Promote::Never));
    assert_eq!(valid.dram_pin(), DramPin::Cuda);
    assert_eq!((valid.has_ssd(), valid.ssd_bytes()), (true, 1 << 40));
    assert_eq!(valid.ssd_dirs(), [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert_eq!(valid.segment_bytes(), 256 << 20);
    assert_eq!((valid.ssd_policy(), valid.reinsert_ratio()), (SsdPolicy::Fifo, 0.0));
    assert_eq!(
        (valid.ssd_io(), valid.write_depth(), valid.write_bytes()),
        (SsdIo::Uring, 64, 64 << 10)
    );
    assert_eq!((valid.write_depth_reading(), valid.checkpoint_segments()), (7, 0));
    assert_eq!(valid.headers_bytes(), 3 << 20);
    assert_eq!(valid.write_budget(), 3 << 30);
    assert_eq!(valid.config().ssd.admission, SsdAdmissionRule::SecondTouch);
    assert_eq!((valid.config().ssd.min_reuse, valid.config().ssd.thrift), (0.5, 1.5));
    assert_eq!(valid.probe_pauses(), (Duration::from_millis(250), Duration::from_millis(1250)));
    assert_eq!((valid.quarantine_after(), valid.scrub_bytes_per_s()), (9, 5 << 20));
    let of = |address: &str| PeerConfig::from(address.parse::<Address>().unwrap());
    let mut first = of("tcp:10.0.0.1:7411");
    first.name = "a".to_owned();
    first.weight = 2.5;
    let mut second = of("unix:/b");
    second.preferred = true;
    let mut rdma = of("tcp:c:7411");
    rdma.transport = BulkTransport::Rdma;
    let mut auto = of("tcp:d:7411");
    auto.transport = BulkTransport::Auto;
    assert_eq!(valid.peers(), [first, second, rdma, auto]);
    assert_eq!(valid.local_hostname(), Some("node-7.example"));
    let RdmaConfig { serve, devices, gpu, gid_index, .. } = valid.rdma();
    assert_eq!((*serve, devices.as_deref()), (true, Some("mlx5_0, mlx5_1")));
    assert_eq!((*gpu, *gid_index), (Some(1), Some(3)));
    assert_eq!((valid.peers()[1].name.as_str(), valid.peers()[1].weight), ("unix:/b", 1.0));
    assert_eq!(valid.peers_key(), Some(Path::new("/key")));
    assert_eq!((valid.staging_bytes(), valid.staging_budget()), (8 << 20, 4 << 20));
    assert_eq!(valid.staging_chunk_bytes(), 96 << 10);
    assert_eq!((valid.group_deadline(), valid.events_max()), (Duration::from_millis(5), 77));
    assert_eq!(valid.max_objects(), 1000);
    assert_eq!(valid.page_recompute_seconds(0), Some(0.0032));
    assert_eq!(valid.page_recompute_seconds(6400), Some(0.01));
    assert_eq!(
        (valid.read_depth(), valid.memory_reserve(), valid.batch_summary()),
        (1024, 0, true)
    );
    // No setting is left at its default, so none of the lines above could pass by accident.
    for field in fields() {
        let default = field.format_value(&Config::default());
        assert_ne!(field.format_value(valid.config()), default, "{}", field.path());
    }
    assert_eq!(
        Config::from_json_str(&valid.config().to_json_string()).as_ref(),
        Ok(valid.config())
    );
}

#[test]
fn defaults_open_and_print_and_read_back() {
    let config = Config::default();
    let valid = config.validate(&facts(1 << 30)).unwrap();
    let plan = valid.memory_plan();
    assert_eq!((plan.arena, plan.staging), (256 << 20, 64 << 20));
    assert_eq!((plan.index, plan.departed), (65_536 * 40, 65_536 * 2));
    assert_eq!((plan.headers, plan.history, plan.locked), (0, 0, 0));
    assert_eq!(plan.total, (320 << 20) + 65_536 * 42);
    let printed = "arena=256MiB staging=64MiB index=2560KiB headers=0B history=0B departed=128KiB \
                   total=330368KiB locked=0B";
    assert_eq!(valid.memory_plan().to_string(), printed);
    assert_eq!(Config::from_json_str(&config.to_json_string()), Ok(config.clone()));
    assert_eq!(Config::from_toml_str(""), Ok(config.clone()));
    assert_eq!(Config::from_json_str("{\"dram\": {}}"), Ok(config));
    assert_eq!(fields().len(), 50);
}

/// (ssd.bytes, dram.bytes) -> (segment, arena, max_objects)
#[test]
fn unset_sizes_are_derived_from_tier_sizes() {
    let cases = [
        ((20 << 20, 0), (4 << 20, 8 << 20, 65_536)),
        ((1 << 30, 256 << 20), (16 << 20, 256 << 20, 81_920)),
        (((2 << 30) - 1, 256 << 20), (16 << 20, 256 << 20, 147_455)),
        ((4 << 40, 256 << 20), (256 << 20, 256 << 20, 16_777_216)),
        ((1 << 40, 0), (256 << 20, 512 << 20, 16_777_216)),
    ];
    for ((ssd, dram), (segment, arena, max_objects)) in cases {
        let mut config = Config::default();
        config.ssd.bytes = Size::from_bytes(ssd);
        config.ssd.dirs = vec![PathBuf::from("/a")];
        config.dram.bytes = Size::from_bytes(dram);
        let valid = config.validate(&facts(1 << 40)).unwrap();
        let numbers = (valid.segment_bytes(), valid.arena_bytes(), valid.max_objects());
        assert_eq!(numbers, (segment, arena, max_objects), "ssd={ssd} dram={dram}");
    }
}

#[test]
fn memory_plan_above_the_limit_is_refused_with_each_part() {
    let needed = (320 << 20) + 65_536 * 42 + (256 << 20);
    Config::default().validate(&facts(needed)).unwrap();
    let error = Config::default().validate(&facts(needed - 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dram.bytes: must be lower: arena + staging + index + headers + history + departed + memory.reserve must be at most 606732287B, \
         got=592512KiB arena=256MiB staging=64MiB index=2560KiB headers=0B history=0B departed=128KiB memory.reserve=256MiB source=test"
    );
    let largest = |set: fn(&mut Config)| {
        let error = Config::builder().set(set).validate(&facts(1 << 29)).unwrap_err();
        assert_eq!(error.problems.len(), 1, "{error}");
        error.problems[0].field.clone()
    };
    assert_eq!(largest(|config| config.memory.reserve = Size::gib(1)), "memory.reserve");
    assert_eq!(largest(|config| config.staging.bytes = Size::gib(1)), "staging.bytes");
    assert_eq!(largest(|config| config.index.max_objects = Some(1 << 25)), "index.max_objects");
    let write_buffer = |config: &mut Config| {
        config.dram.bytes = Size::ZERO;
        config.ssd.bytes = Size::gib(64);
        config.ssd.dirs = vec![PathBuf::from("/a")];
        config.ssd.segment_bytes = Some(Size::mib(256));
    };
    assert_eq!(largest(write_buffer), "ssd.segment_bytes");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test looks at the real directory")]
fn validation_creates_no_files() {
    let root = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.ssd.bytes = Size::gib(1);
    config.ssd.dirs = vec![root.path().join("a"), root.path().join("b")];
    config.validate(&facts(1 << 40)).unwrap();
    config.validate(&facts(0)).unwrap_err();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn too_long_or_too_deep_text_is_refused() {
    let long = " ".repeat((1 << 20) + 1);
    let error = Config::from_toml_str(&long).unwrap_err();
    assert_eq!(error.to_string(), "(file): must be at most 1MiB of text, got=1048577B");
    let json = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert_eq!(Config::from_json_str(&json).unwrap_err().problems[0].field, "(file)");
    // The deepest nesting that each construct of TOML allows, inside each other.
    let dotted = ["a"; 79].join(".");
    let inline = format!("{}1{}", format!("{{{dotted}=").repeat(78), "}".repeat(78));
    // 78 dots and 50 braces: the deepest nesting that is parsed.
    let parsed = format!("{{{dotted}={}1{}}}", "{a=".repeat(49), "}".repeat(49));
    let error = Config::from_toml_str(&format!("a={parsed}")).unwrap_err();
    assert!(error.problems[0].message.starts_with("is not a setting"), "{error}");
    for text in
        [format!("{}=1", ["a"; 100_000].join(".")), format!("[{dotted}]\n{dotted}={inline}")]
    {
        assert!(!Config::from_toml_str(&text).unwrap_err().problems.is_empty());
    }
}

/// Texts that are nearly valid: they exercise more code than noise.
fn nearly_right() -> impl Strategy<Value = String> {
    let key = prop::sample::select(
        fields().iter().map(|field| field.path().to_owned()).collect::<Vec<_>>(),
    );
    let key = prop_oneof![key, "[a-z._\"]{0,12}"];
    let value = prop_oneof![
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| format!("{value:?}")),
        "\"[0-9.]{1,24} ?[KMGTiB]{0,3}\"",
        "\"\\PC{0,8}\"",
        Just("true".to_owned()),
        Just("[\"/a\", [], {}]".to_owned()),
        Just(
            "[\"unix:/a\", {\"address\": \"unix:/b\", \"weight\": 1e999, \"name\": null}]"
                .to_owned()
        ),
        Just("1979-05-27T07:32:00Z".to_owned()),
    ];
    let line = (key, value).prop_map(|(key, value)| format!("{key} = {value}\n"));
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Every refused text gets a reason; every accepted one prints and reads back.
    #[test]
    fn no_text_panics(
        text in prop_oneof![nearly_right(), "\\PC{0,200}", any::<String>()],
        memory in any::<u64>(),
    ) {
        for format in [ConfigFormat::Toml, ConfigFormat::Json] {
            match Config::from_text(format, &text) {
                Ok(config) => {
                    prop_assert_eq!(Config::from_json_str(&config.to_json_string()), Ok(config.clone()));
                    if let Ok(valid) = config.validate(&facts(memory)) {
                        prop_assert!(valid.memory_plan().total + valid.memory_reserve() <= memory);
                    }
                }
                Err(error) => {
                    prop_assert!(!error.problems.is_empty());
                    prop_assert_eq!(error.to_string().lines().count(), error.problems.len());
                }
            }
        }
    }

    #[test]
    fn no_variable_panics(name in "PAGELITH_\\PC{0,20}", index in 0..22_usize, text in any::<String>()) {
        let known = fields()[index].env_name();
        let _ = Config::builder().env([(name, text.clone()), (known, text)]).build().map_err(|e| e.to_string());
    }

    #[test]
    fn sizes_read_back(bytes in any::<u64>(), text in "[0-9.]{0,24} ?[KMGTkmgtiBb]{0,3}") {
        let size = Size::from_bytes(bytes);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
        if let Ok(parsed) = text.parse::<Size>() {
            prop_assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }
}
