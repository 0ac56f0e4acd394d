//! Permitted dependencies between crates. Normal and build dependencies count; a crate's tests may
//! use the simulator.

use std::collections::BTreeMap;

use super::source::{CRATES, exists, files, text, words};

/// Package, its directory, and the packages of the workspace that it may depend on.
const ARROWS: &[(&str, &str, &[&str])] = &[
    // Planted bugs: none in a build that ships.
    ("pagelith-mutants", "sim/mutants", &[]),
    ("pagelith-layouts", "layouts", &["pagelith-mutants"]),
    ("pagelith-io", "io", &["pagelith-mutants", "pagelith-layouts"]),
    ("pagelith-tiers", "tiers", &["pagelith-mutants", "pagelith-layouts", "pagelith-io"]),
    ("pagelith-transport", "transport", &["pagelith-mutants", "pagelith-layouts", "pagelith-io"]),
    // A process without a store of its own links neither tiers nor index.
    (
        "pagelith-client",
        "client",
        &["pagelith-mutants", "pagelith-layouts", "pagelith-io", "pagelith-transport"],
    ),
    (
        "pagelith",
        "engine",
        &[
            "pagelith-mutants",
            "pagelith-layouts",
            "pagelith-io",
            "pagelith-tiers",
            "pagelith-transport",
            "pagelith-client",
        ],
    ),
    (
        "pagelith-cli",
        "cli",
        // Of the tiers, `simulate` uses the policies.
        &["pagelith-layouts", "pagelith-io", "pagelith-tiers", "pagelith-transport", "pagelith"],
    ),
    // Implementations of the interfaces of io and transport, and the explorer that drives a store
    // over them; nothing that ships depends on it.
    (
        "pagelith-sim",
        "sim",
        &["pagelith-mutants", "pagelith-layouts", "pagelith-io", "pagelith-transport", "pagelith"],
    ),
    // Tests of the store over the real kernel, from outside like any program; nothing may depend on
    // it.
    ("pagelith-kernel-lanes", "sim/kernel", &["pagelith"]),
    // A peer for queue pairs that shares no code with them, and their tests against it.
    ("pagelith-rdma-peer", "sim/rdma-peer", &["pagelith-io"]),
    // The wheel, the same.
    ("pagelith-python", "python", &["pagelith", "pagelith-cli"]),
    // Tests only.
    ("pagelith-rdma-store", "python/tests/rdma-store", &["pagelith"]),
    ("pagelith-concurrency", "sim/concurrency", &[]),
    ("pagelith-fake-device", "io/tests/fake-device", &[]),
    ("pagelith-fake-verbs", "io/tests/fake-verbs", &[]),
];

/// Packages of the workspace on which `manifest` depends, other than for its tests.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let mut tables: Vec<&toml::Value> = Vec::new();
    let kinds = ["dependencies", "build-dependencies"];
    tables.extend(kinds.iter().filter_map(|kind| manifest.get(*kind)));
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flat_map(|t| t.values()) {
        tables.extend(kinds.iter().filter_map(|kind| target.get(kind)));
    }
    let mut found = Vec::new();
    for (name, value) in tables.iter().filter_map(|t| t.as_table()).flatten() {
        // A dependency may be renamed; `package` is then its true name.
        let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
        if package == "pagelith" || package.starts_with("pagelith-") {
            found.push(package.to_owned());
        }
    }
    found
}

/// Violations in the manifests, by directory.
fn wrong_arrows(manifests: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (dir, manifest) in manifests {
        // Benches may depend on anything; the other rows ensure that nothing depends on them.
        if dir.starts_with("benches/") {
            continue;
        }
        let table: toml::Table =
            manifest.parse().unwrap_or_else(|e| panic!("{dir}/Cargo.toml: {e}"));
        let package = table["package"]["name"].as_str().unwrap_or_default();
        let Some((_, _, allowed)) = ARROWS.iter().find(|(p, d, _)| *p == package && d == dir)
        else {
            wrong.push(format!("crate has no place in the house package={package} dir={dir}"));
            continue;
        };
        for dependency in dependencies(&table) {
            if !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{package} must not depend on {dependency}"));
            }
        }
    }
    wrong
}

fn manifests() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in CRATES.iter().flat_map(|dir| files(dir, "Cargo.toml")) {
        let text = text(&path);
        found.insert(path.trim_end_matches("/Cargo.toml").to_owned(), text);
    }
    found
}

/// Directories of manifests, but for that of the planted bugs themselves, that name the feature
/// which builds those in.
fn planting(manifests: &BTreeMap<String, String>) -> Vec<&String> {
    let names = |line: &str| !line.trim_start().starts_with('#') && line.contains("planted");
    let plants = |dir: &str, manifest: &str| dir != "sim/mutants" && manifest.lines().any(names);
    manifests.iter().filter(|(dir, manifest)| plants(dir, manifest)).map(|(dir, _)| dir).collect()
}

/// `sim/mutants.sh` says so on its command line.
#[test]
fn no_manifest_builds_planted_bugs_in() {
    let mut manifests = manifests();
    manifests.insert(".".to_owned(), text("Cargo.toml"));
    assert_eq!(planting(&manifests), Vec::<&String>::new());
    for planted in [
        "[dependencies]\npagelith-mutants = { workspace = true, features = [\"planted\"] }",
        "[features]\ndefault = [\"pagelith-mutants/planted\"]",
    ] {
        let manifests = BTreeMap::from([("engine".to_owned(), planted.to_owned())]);
        assert_eq!(planting(&manifests), ["engine"], "{planted}");
    }
}

#[test]
fn crates_depend_downwards_only() {
    let manifests = manifests();
    assert!(
        manifests.contains_key("engine") && manifests.contains_key("sim"),
        "{:?}",
        manifests.keys()
    );
    assert_eq!(wrong_arrows(&manifests), Vec::<String>::new());
}

#[test]
fn upward_dependency_is_detected() {
    let planted = [
        ("layouts", "pagelith-layouts", "[dependencies]\npagelith-io = {}"),
        ("tiers", "pagelith-tiers", "[dependencies]\npagelith-transport.workspace = true"),
        ("client", "pagelith-client", "[dependencies]\npagelith-tiers.workspace = true"),
        ("engine", "pagelith", "[target.'cfg(unix)'.dependencies]\npagelith-sim = {}"),
        ("cli", "pagelith-cli", "[build-dependencies]\nhelper = { package = \"pagelith-sim\" }"),
        ("shed", "pagelith-shed", ""),
    ];
    for (dir, package, rest) in planted {
        let manifest = format!("[package]\nname = \"{package}\"\n{rest}\n");
        let wrong = wrong_arrows(&BTreeMap::from([(dir.to_owned(), manifest)]));
        assert_eq!(wrong.len(), 1, "{package}: {wrong:?}");
    }
    let tests_only = "[package]\nname = \"pagelith\"\n[dev-dependencies]\npagelith-sim = {}\n";
    assert_eq!(
        wrong_arrows(&BTreeMap::from([("engine".to_owned(), tests_only.to_owned())])),
        Vec::<String>::new()
    );
}

/// So that `cargo run` at the root needs no package name; other programs are run with one.
#[test]
fn workspace_has_one_program_by_default() {
    let workspace: toml::Table = text("Cargo.toml").parse().expect("a manifest");
    let default = workspace["workspace"]["default-members"].as_array().expect("default members");
    let is_default = |dir: &str| default.iter().any(|member| member.as_str() == Some(dir));
    let mut programs = Vec::new();
    for (dir, manifest) in manifests() {
        let table: toml::Table = manifest.parse().expect("a manifest");
        if table.contains_key("workspace") {
            continue; // A workspace of its own.
        }
        let named = table.get("bin").and_then(toml::Value::as_array).map_or(0, Vec::len);
        let implied = usize::from(named == 0 && exists(&format!("{dir}/src/main.rs")));
        let more = files(&format!("{dir}/src/bin"), ".rs").len();
        if is_default(&dir) {
            programs.extend(std::iter::repeat_n(dir, named + implied + more));
        }
    }
    assert_eq!(programs, ["cli"]);
}

/// They must work on a store that the engine cannot open.
#[test]
fn inspect_and_verify_read_with_layouts_alone() {
    let mut read = files("cli/src/verify", ".rs");
    read.extend(files("cli/src/on_disk", ".rs"));
    read.extend(files("cli/src", "/inspect.rs"));
    read.extend(files("cli/src", "inspect.rs"));
    assert!(read.len() >= 3, "{read:?}");
    let with_engine: Vec<_> = read
        .into_iter()
        .filter(|path| words(&super::source::code(&text(path)), "pagelith") > 0)
        .collect();
    assert_eq!(with_engine, Vec::<String>::new());
}
