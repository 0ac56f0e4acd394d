//! Files of a crate that use each other in a circle: none of them can be read, tested or moved
//! alone. A file uses another if its shipped code names an item of it, by a path from `crate`,
//! `super` or `self`, or from a module inside it. A name that passes through a re-export leads to
//! the file that has the item; the re-export itself is no use.

use std::collections::{BTreeMap, BTreeSet};

use super::code::shipping;
use super::source::{files, is_test_file, text};

/// Crates without circles.
const CRATES: [&str; 6] = ["io", "layouts", "tiers", "transport", "cli", "sim"];

/// The files of each circle that is left in `client/src`. The lists may only get shorter.
const CLIENT: [&[&str]; 3] = [
    &["api/hits.rs", "api/hits/check.rs", "api/hits/evaluate.rs", "api/hits/lookup.rs"],
    &[
        "client/batch.rs",
        "client/control.rs",
        "client/events.rs",
        "client/lease_connection.rs",
        "client/mod.rs",
        "client/put.rs",
    ],
    &["rpc/call.rs", "rpc/decode.rs"],
];

/// As `CLIENT`, in `engine/src`.
const ENGINE: [&[&str]; 5] = [
    &["config/parse.rs", "config/valid.rs", "config/validate.rs"],
    &[
        "memory/index/entry.rs",
        "memory/index/mod.rs",
        "memory/index/read.rs",
        "memory/index/table.rs",
    ],
    &["memory/pins.rs", "memory/pins/client.rs"],
    &[
        "server/call_context.rs",
        "server/commit.rs",
        "server/durable.rs",
        "server/exists.rs",
        "server/get.rs",
        "server/immediate.rs",
        "server/in_flight_sends.rs",
        "server/load.rs",
        "server/mod.rs",
        "server/outbox.rs",
        "server/put.rs",
        "server/put/run.rs",
    ],
    &[
        "state/core.rs",
        "state/frame_access.rs",
        "state/peer_offers.rs",
        "state/peer_queue.rs",
        "state/pending_groups.rs",
        "state/read_view.rs",
    ],
];

/// A path in Rust code, by its parts.
type Path = Vec<String>;

/// A file of a crate.
struct File {
    /// Path from the root of the repository.
    name: String,
    /// Shipped code without its re-exports.
    code: String,
    /// The paths that it re-exports, by the name that they get here.
    exports: BTreeMap<String, Path>,
}

/// The files of a crate, by module.
type Modules = BTreeMap<Path, File>;

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Read the use tree at the start of `code`: append its paths after `before`, each with the name
/// that it gets, to `found`. Returns the rest of the code.
fn use_tree<'c>(code: &'c str, before: &[String], found: &mut Vec<(String, Path)>) -> &'c str {
    let mut path = before.to_vec();
    let mut rest = code.trim_start();
    loop {
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let after = use_tree(rest, &path, found).trim_start_matches([',', ' ', '\n']);
                if after.len() == rest.len() {
                    break;
                }
                rest = after;
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let end = rest.find(|c| !is_word(c) && c != '*').unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        path.extend((!part.is_empty()).then(|| part.to_owned()));
        match after.strip_prefix("::") {
            Some(next) if end > 0 => rest = next.trim_start(),
            _ => {
                rest = after;
                break;
            }
        }
    }
    let alias = rest.trim_start().strip_prefix("as ").map(|name| {
        let end = name.find(|c| !is_word(c)).unwrap_or(name.len());
        rest = &name[end..];
        name[..end].to_owned()
    });
    if let Some(last) = path.last() {
        found.push((alias.unwrap_or_else(|| last.clone()), path));
    }
    rest
}

/// Split a file's shipped code into its re-exports and the rest.
fn split_exports(code: &str) -> (BTreeMap<String, Path>, String) {
    let (mut exports, mut other, mut rest) = (Vec::new(), String::new(), code);
    while let Some(at) = rest.find("pub") {
        let (before, from) = rest.split_at(at);
        let after = from["pub".len()..].trim_start();
        let after = match after.strip_prefix('(').and_then(|scope| scope.split_once(')')) {
            Some((_, after)) => after.trim_start(),
            None => after,
        };
        other.push_str(before);
        rest = match after.strip_prefix("use ") {
            Some(tree) if !before.ends_with(is_word) => use_tree(tree, &[], &mut exports),
            _ => {
                other.push_str("pub");
                &from["pub".len()..]
            }
        };
    }
    other.push_str(rest);
    (exports.into_iter().collect(), other)
}

/// The modules of the crate whose sources are below `dir`, from the text of each file by its name.
fn modules(dir: &str, sources: &BTreeMap<String, String>) -> Modules {
    let mut modules = Modules::new();
    for (name, rust) in sources {
        let inner = name.trim_start_matches(dir).trim_start_matches('/').trim_end_matches(".rs");
        let mut module: Path = inner.split('/').map(str::to_owned).collect();
        module.pop_if(|last| last == "mod" || last == "lib");
        let (exports, code) = split_exports(&shipping(rust));
        modules.insert(module, File { name: name.clone(), code, exports });
    }
    modules
}

/// The file that has the item at `path`, which is named in `module`.
fn file_of<'m>(modules: &'m Modules, module: &[String], path: &[String]) -> Option<&'m str> {
    let mut at = module.to_vec();
    let mut rest = path;
    loop {
        match rest.first().map(String::as_str) {
            Some("crate") => at.clear(),
            Some("super") => _ = at.pop(),
            Some("self") => {}
            _ => break,
        }
        rest = &rest[1..];
    }
    while let Some((part, after)) = rest.split_first() {
        at.push(part.clone());
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
        rest = after;
    }
    let file = modules.get(&at)?;
    match rest.first().and_then(|name| file.exports.get(name)) {
        // A re-export under its own name, as of a crate's item.
        Some(export) if !(at == module && export == path) => file_of(modules, &at, export),
        _ => Some(&file.name),
    }
}

/// Whether `code` uses `name` as a type, a function or a module of its own scope.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let declared = ["mod ", "fn "].iter().any(|keyword| before.ends_with(keyword));
        let is_part = before.ends_with(|c| is_word(c) || c == '.' || c == ':');
        !declared && !is_part && !after.starts_with(is_word)
    })
}

/// The files that the file of `module` uses.
fn used<'m>(modules: &'m Modules, module: &[String]) -> BTreeSet<&'m str> {
    let file = &modules[module];
    let is_child = |other: &&Path| other.len() == module.len() + 1 && other.starts_with(module);
    let children = modules.keys().filter(is_child).filter_map(|child| child.last());
    let heads = ["crate", "super", "self"].into_iter().chain(children.map(String::as_str));
    let mut paths = Vec::new();
    for head in heads {
        for (at, _) in file.code.match_indices(&format!("{head}::")) {
            let before = &file.code[..at];
            // `pub(in path)` and `$crate` name no item.
            let is_part = before.ends_with(|c| is_word(c) || c == ':' || c == '$');
            if !is_part && !before.ends_with("(in ") {
                use_tree(&file.code[at..], &[], &mut paths);
            }
        }
    }
    let exports = file.exports.iter().filter(|(name, _)| names(&file.code, name));
    let paths = paths.iter().map(|(_, path)| path).chain(exports.map(|(_, path)| path));
    let found = paths.filter_map(|path| file_of(modules, module, path));
    found.filter(|other| *other != file.name).collect()
}

/// The circles of the files of a crate, from the text of each file by its name.
fn circles(dir: &str, sources: &BTreeMap<String, String>) -> BTreeSet<BTreeSet<String>> {
    let modules = modules(dir, sources);
    let uses: BTreeMap<&str, BTreeSet<&str>> =
        modules.iter().map(|(module, file)| (&*file.name, used(&modules, module))).collect();
    let reached = |from: &str| {
        let mut reached = uses[from].clone();
        let mut next: Vec<&str> = reached.iter().copied().collect();
        while let Some(file) = next.pop() {
            next.extend(uses[file].iter().filter(|other| reached.insert(**other)));
        }
        reached
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (*file, reached(file))).collect();
    let circle = |file: &&str| -> BTreeSet<String> {
        let others = reached[*file].iter().filter(|other| reached[**other].contains(*file));
        others.map(|other| (*other).to_owned()).collect()
    };
    reached.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

fn circles_of(name: &str) -> BTreeSet<BTreeSet<String>> {
    let dir = format!("{name}/src");
    let sources = files(&dir, ".rs").into_iter().filter(|path| !is_test_file(path));
    let sources: BTreeMap<_, _> = sources.map(|path| (path.clone(), text(&path))).collect();
    assert!(sources.len() > 5, "{name}: {sources:?}");
    circles(&dir, &sources)
}

#[test]
fn files_of_smaller_crates_use_each_other_in_no_circle() {
    for name in CRATES {
        assert_eq!(circles_of(name), BTreeSet::new(), "{name}");
    }
}

#[test]
fn circles_of_client_and_engine_only_shrink() {
    for (name, circles) in [("client", &CLIENT[..]), ("engine", &ENGINE[..])] {
        let path = |file: &&str| format!("{name}/src/{file}");
        let listed = circles.iter().map(|circle| circle.iter().map(path).collect()).collect();
        assert_eq!(circles_of(name), listed, "left: in the code; right: the lists");
    }
}

#[test]
fn circle_of_files_is_detected() {
    let found = |sources: &[(&str, &str)]| {
        let sources = sources.iter().map(|(name, rust)| (format!("x/src/{name}"), (*rust).into()));
        circles("x/src", &sources.collect()).len()
    };
    let lib = ("lib.rs", "pub mod a;\nmod b;\npub use a::A;");
    let planted = [
        ("use crate::b::B;\npub struct A;", "use super::a::A;\npub struct B;"),
        ("pub fn a() { crate::b::b() }", "use crate::{a, ids::{Id, Other}};"),
        ("use super::b::{self, B};", "pub(crate) fn b() { super::a::a() }"),
        // By way of the root, which re-exports it.
        ("use crate::b;", "use crate::A;"),
    ];
    for (a, b) in planted {
        assert_eq!(found(&[lib, ("a.rs", a), ("b.rs", b)]), 1, "{a} {b}");
    }
    let harmless = [
        ("use crate::b::B;", "pub struct B; // crate::a::A"),
        ("use crate::b::B;", "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}"),
        ("use crate::b::B;", "pub(in crate::a) struct B;"),
        ("pub use crate::b::B;", "use other::crate_::a;\npub struct B;"),
        ("use super::b;", "pub use super::a::A;"),
    ];
    for (a, b) in harmless {
        assert_eq!(found(&[lib, ("a.rs", a), ("b.rs", b)]), 0, "{a} {b}");
    }
    // A module and one inside of it.
    let parent = |own: &str, inner: &str| {
        found(&[("lib.rs", "mod a;"), ("a/mod.rs", own), ("a/b.rs", inner)])
    };
    let inner = "use super::A;\npub struct B(A);";
    assert_eq!(parent("mod b;\nstruct A;\nfn f(b: b::B) {}", inner), 1);
    assert_eq!(parent("mod b;\npub use b::B;\nstruct A;\nfn f(b: B) {}", inner), 1);
    assert_eq!(parent("mod b;\npub use b::B;\nstruct A;", inner), 0, "re-exported only");
}
