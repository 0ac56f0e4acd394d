//! Which folder of `client/src` and `engine/src` may name which: a folder uses itself and those
//! before it. The engine names the folders of the client as its own.

use std::collections::BTreeSet;

use super::code::shipping;
use super::source::{files, is_test_file, text};

/// The folders and their crates, lowest first. A name may point to the left only.
const FOLDERS: [(&str, &str); 11] = [
    ("client", "api"),
    ("client", "rpc"),
    ("client", "client"),
    ("engine", "config"),
    ("engine", "memory"),
    ("engine", "state"),
    ("engine", "read"),
    ("engine", "write"),
    ("engine", "background"),
    ("engine", "store"),
    ("engine", "server"),
];

fn rust_files() -> impl Iterator<Item = String> {
    ["client/src", "engine/src"].into_iter().flat_map(|dir| files(dir, ".rs"))
}

/// The folder of a path, and how many modules deep its file is.
fn place(path: &str) -> Option<(usize, usize)> {
    let (package, inner) = path.split_once("/src/")?;
    let of = (package, inner.split('/').next()?);
    let folder = FOLDERS.iter().position(|folder| *folder == of)?;
    let file = inner.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    Some((folder, file.split('/').count()))
}

/// The module of a path that begins with `crate::`, as `folder::module`.
fn module(path: &str) -> String {
    let named = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = path.find(|c| !named(c)).unwrap_or(path.len());
    path[..end].split("::").filter(|part| !part.is_empty()).take(2).collect::<Vec<_>>().join("::")
}

/// Names of a file that are to the right of its folder, and names without a folder.
fn upward(path: &str, rust: &str) -> BTreeSet<(String, String)> {
    let Some((own, depth)) = place(path) else { return BTreeSet::new() };
    let code = shipping(rust);
    let mut found = BTreeSet::new();
    for (at, word) in code.match_indices("crate::") {
        let module = module(&code[at + word.len()..]);
        let folder = module.split("::").next().unwrap_or_default();
        match FOLDERS.iter().position(|(_, name)| *name == folder) {
            Some(named) if named <= own => {}
            Some(_) | None => {
                found.insert((path.to_owned(), module));
            }
        }
    }
    // So many steps up leave the folder, and do not say where to.
    let out = "super::".repeat(depth);
    if code.contains(&out) {
        found.insert((path.to_owned(), out));
    }
    found
}

#[test]
fn each_folder_uses_itself_and_those_before_it() {
    let sources = rust_files().filter(|path| !is_test_file(path));
    let found: BTreeSet<_> = sources.flat_map(|path| upward(&path, &text(&path))).collect();
    assert_eq!(found, BTreeSet::new());
}

#[test]
fn only_the_root_file_is_outside_folders() {
    let elsewhere: Vec<_> = rust_files().filter(|path| place(path).is_none()).collect();
    assert_eq!(elsewhere, ["client/src/lib.rs", "engine/src/lib.rs"]);
}

#[test]
fn each_folder_has_a_one_sentence_description() {
    for (package, folder) in FOLDERS {
        let head = text(&format!("{package}/src/{folder}/mod.rs"));
        assert!(head.lines().next().is_some_and(|line| line.starts_with("//! ")), "{folder}");
    }
}

#[test]
fn upward_name_is_detected() {
    let found = |rust: &str| upward("engine/src/read/get.rs", rust).len();
    assert_eq!(found("use crate::state::core::Core;\nuse super::slot;\nuse crate::read::plan;"), 0);
    assert_eq!(found("use crate::store::session::Session;"), 1);
    assert_eq!(found("fn f() { crate::server::run() }"), 1);
    assert_eq!(found("use crate::Store;"), 1, "says no folder");
    assert_eq!(upward("client/src/rpc/call.rs", "use crate::client::Client;").len(), 1);
    assert_eq!(found("use super::super::server;"), 1, "leaves the folder");
    assert_eq!(found("// crate::server\n#[cfg(test)]\nmod tests {\n    use crate::store;\n}"), 0);
}
