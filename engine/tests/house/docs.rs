//! Documents name existing files, functions, tests and dependencies.

use super::source::{cells, code, exists, files, root, rust_files, text};

/// Markdown pages written by hand or rendered, by path from the root.
pub fn pages() -> Vec<String> {
    let mut pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned).to_vec();
    pages.extend(
        ["docs", "sim", "fuzz", "benches", "python"].iter().flat_map(|dir| files(dir, ".md")),
    );
    pages
}

/// Targets of the page's links, without those outside of the repository, as (file, heading); the
/// file is empty for a heading of the page itself.
fn targets(page: &str) -> Vec<(String, Option<String>)> {
    let targets = page.match_indices("](").filter_map(|(at, _)| page[at + 2..].split(')').next());
    let own = targets.filter(|t| !t.contains("://") && !t.contains(char::is_whitespace));
    own.map(|t| match t.split_once('#') {
        Some((file, heading)) => (file.to_owned(), Some(heading.to_owned())),
        None => (t.to_owned(), None),
    })
    .collect()
}

/// Files that the page links to.
fn links(page: &str) -> Vec<String> {
    targets(page).into_iter().map(|(file, _)| file).filter(|file| !file.is_empty()).collect()
}

/// Anchors of a page's headings, as Markdown viewers make them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| heading.to_lowercase().chars().filter(kept).collect::<String>();
    headings.map(|line| anchor(line.trim_start_matches('#').trim()).replace(' ', "-")).collect()
}

/// Pages of docs/ that `contents` does not link to.
fn unlisted(contents: &str, pages: &[String]) -> Vec<String> {
    let links = links(contents);
    let listed = |page: &&String| !links.iter().any(|link| format!("docs/{link}") == **page);
    pages.iter().filter(listed).cloned().collect()
}

#[test]
fn reading_list_contains_every_page_and_decision() {
    let pages: Vec<_> =
        files("docs", ".md").into_iter().filter(|p| p != "docs/SUMMARY.md").collect();
    assert!(pages.iter().any(|p| p.starts_with("docs/decisions/0002")), "{pages:?}");
    assert_eq!(unlisted(&text("docs/SUMMARY.md"), &pages), Vec::<String>::new());
    let planted = ["docs/decisions/0099-forgotten.md".to_owned()];
    assert_eq!(unlisted(&text("docs/SUMMARY.md"), &planted), planted);
}

#[test]
fn links_have_existing_targets() {
    let mut broken = Vec::new();
    for page in pages() {
        let dir = page.rsplit_once('/').map_or("", |(dir, _)| dir);
        for (link, heading) in targets(&text(&page)) {
            let to =
                if link.is_empty() { root().join(&page) } else { root().join(dir).join(&link) };
            let whole = heading.is_none_or(|heading| {
                std::fs::read_to_string(&to).is_ok_and(|page| anchors(&page).contains(&heading))
            });
            if !to.exists() || !whole {
                broken.push(format!("{page}: {}", to.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert_eq!(anchors("# A `b`: c-d, e\ntext\n## 1. F"), ["a-b-c-d-e", "1-f"]);
    assert_eq!(links("[a](b.md#c) [d](https://e) [f](#g) `x](y z)`"), ["b.md"]);
}

/// Texts between backticks, outside of fenced blocks.
fn spans(page: &str) -> Vec<&str> {
    let outside = page.split("\n```").step_by(2);
    outside.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Spans `module::function` and `Type::function` that no source file defines. A module is a file's
/// name or its directory's.
fn absent_functions(page: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut absent = Vec::new();
    for span in spans(page) {
        let Some((place, function)) = function_name(span) else { continue };
        let is_type = place.starts_with(|c: char| c.is_ascii_uppercase());
        let there = sources.iter().any(|(path, code)| {
            let here = if is_type {
                code.contains(place)
            } else {
                path.ends_with(&format!("/{place}.rs")) || path.contains(&format!("/{place}/"))
            };
            let function_is =
                |before: &str, after: &str| code.contains(&format!("{before}{function}{after}"));
            here && (function_is("fn ", "(") || function_is("fn ", "<"))
        });
        if !there {
            absent.push(span.to_owned());
        }
    }
    absent
}

/// The file that a path of docs/architecture.md names, by its own rule: `CRATE/...` from the root,
/// the folders of the client from `client/src`, the rest from `engine/src`.
fn architecture_file(path: &str) -> String {
    if exists(path) {
        path.to_owned()
    } else if ["api/", "rpc/", "client/"].iter().any(|folder| path.starts_with(folder)) {
        format!("client/src/{path}")
    } else {
        format!("engine/src/{path}")
    }
}

/// Spans `module::function` and `Type::function` whose file does not define them. The file of a
/// function is the next one if nothing but names is between them, and else the one before it in
/// the same paragraph, step or bullet. In a row of a table it is any file of the row.
fn misplaced_functions(page: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut misplaced = Vec::new();
    for block in blocks(page) {
        let parts: Vec<&str> = block.split('`').collect();
        let is_file = |i: &usize| parts[*i].ends_with(".rs") && parts[*i].contains('/');
        let is_function = |i: usize| function_name(parts[i]).is_some();
        for i in (1..parts.len()).step_by(2).filter(|i| is_function(*i)) {
            let named: Vec<usize> = (1..parts.len()).step_by(2).filter(is_file).collect();
            let joined = |j: usize| {
                (i + 1..j).all(|k| match k % 2 {
                    0 => matches!(parts[k].trim(), "" | "(" | "," | "and" | ", and" | "or" | "in"),
                    _ => is_function(k),
                })
            };
            let next = named.iter().find(|j| **j > i && joined(**j));
            let own = next.or_else(|| named.iter().rfind(|j| **j < i)).copied();
            let files = if cells(&block).is_empty() { Vec::from_iter(own) } else { named };
            let files: Vec<_> = files.iter().map(|j| architecture_file(parts[*j])).collect();
            let there = sources.iter().filter(|(path, _)| files.contains(path));
            if absent_functions(&format!("`{}`", parts[i]), &there.cloned().collect::<Vec<_>>())
                .is_empty()
            {
                continue;
            }
            misplaced.push(format!("{} {files:?}", parts[i]));
        }
    }
    misplaced
}

/// Type or module, and function, of a span `place::function`.
fn function_name(span: &str) -> Option<(&str, &str)> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (place, function) = span.split_once("::")?;
    let is_name = |text: &str| !text.is_empty() && text.chars().all(name);
    (is_name(place) && is_name(function)).then_some((place, function))
}

/// Paragraphs, list items and rows of tables of a page, without fenced blocks.
fn blocks(page: &str) -> Vec<String> {
    let outside: String = page.split("\n```").step_by(2).collect();
    let mut blocks = vec![String::new()];
    for line in outside.lines() {
        let text = line.trim_start();
        let item = text.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        let row = !cells(text).is_empty();
        if text.is_empty() || item || row || text.starts_with('#') || text.starts_with("- ") {
            blocks.push(String::new());
        }
        if let Some(block) = blocks.last_mut() {
            *block += text;
            block.push(' ');
        }
    }
    blocks
}

/// Rust files that the page names and that do not exist: from the root, below `src` of the engine
/// or its client, or below the page's own folder.
fn absent_files(dir: &str, page: &str) -> Vec<String> {
    let absent = |span: &&str| {
        let path = span.split_whitespace().next().unwrap_or_default();
        let is_path = path.ends_with(".rs") && path.contains('/') && !path.contains(['*', '{']);
        let own = [format!("{dir}/"), format!("{dir}/src/")];
        let shared = ["", "engine/src/", "client/src/"].map(str::to_owned);
        is_path && !own.iter().chain(&shared).any(|place| exists(&format!("{place}{path}")))
    };
    spans(page).into_iter().filter(absent).map(str::to_owned).collect()
}

#[test]
fn files_named_in_documents_exist() {
    for page in pages() {
        let dir = page.rsplit_once('/').map_or(".", |(dir, _)| dir);
        assert_eq!(absent_files(dir, &text(&page)), Vec::<String>::new(), "{page}");
    }
    assert_eq!(absent_files(".", "`io/src/disk.rs` `io/src/none.rs` `a.rs`"), ["io/src/none.rs"]);
}

fn sources() -> Vec<(String, String)> {
    rust_files().into_iter().map(|path| (path.clone(), code(&text(&path)))).collect()
}

#[test]
fn functions_named_in_documents_exist() {
    let sources = sources();
    for page in ["docs/promises.md", "docs/operations.md", "docs/security.md"] {
        assert_eq!(absent_functions(&text(page), &sources), Vec::<String>::new(), "{page}");
    }
    let planted = absent_functions("`put::admit` `put::no_such` `Flusher::step` `A::b`", &sources);
    assert_eq!(planted, ["put::no_such", "A::b"]);
}

#[test]
fn files_in_numbered_steps_define_their_functions() {
    let sources = sources();
    for page in ["docs/architecture.md", "docs/policy.md", "docs/decisions/0026-rdma-links.md"] {
        assert_eq!(misplaced_functions(&text(page), &sources), Vec::<String>::new(), "{page}");
    }
    let planted = "`Core::drop_damaged` (`state/damage.rs`).\n\n`Log::sync` has no file.";
    assert_eq!(misplaced_functions(planted, &sources).len(), 2);
}

/// Tests named as `path.rs` `test` in the page's rows that do not exist: a path that begins a span,
/// and the names in the spans after it up to the next path.
fn absent_tests(page: &str) -> Vec<String> {
    let mut absent = Vec::new();
    for row in page.lines().filter(|line| !cells(line).is_empty()) {
        let mut file: Option<(&str, String)> = None;
        for span in row.split('`').skip(1).step_by(2) {
            if span.ends_with(".rs") && span.contains('/') {
                if !exists(span) {
                    absent.push(span.to_owned());
                    file = None;
                    continue;
                }
                file = Some((span, text(span)));
            } else if let Some((path, text)) = &file
                && !text.contains(&format!("fn {span}("))
                && !text.contains(&format!("{span}!("))
            {
                absent.push(format!("{path} {span}"));
            }
        }
    }
    absent
}

#[test]
fn tests_named_in_promises_exist() {
    let page = text("docs/promises.md");
    assert!(page.lines().filter(|line| !cells(line).is_empty()).count() > 8);
    assert_eq!(absent_tests(&page), Vec::<String>::new());
    let planted = "1 | `engine/tests/none.rs` `x` `engine/tests/house.rs` `nor_this`";
    assert_eq!(absent_tests(planted), ["engine/tests/none.rs", "engine/tests/house.rs nor_this"]);
}

/// Whether the page has a row that begins with the name.
fn has_row(page: &str, name: &str) -> bool {
    page.lines().any(|line| cells(line).first() == Some(&format!("`{name}`").as_str()))
}

/// External dependencies of the workspace without a row in the page.
fn without_reason(manifest: &str, page: &str) -> Vec<String> {
    let table: toml::Table = manifest.parse().expect("a manifest");
    let all = table["workspace"]["dependencies"].as_table().expect("the workspace's dependencies");
    let own = |name: &&String| name.as_str() != "pagelith" && !name.starts_with("pagelith-");
    all.keys().filter(own).filter(|name| !has_row(page, name)).cloned().collect()
}

#[test]
fn every_dependency_has_a_reason() {
    let (manifest, page) = (text("Cargo.toml"), text("docs/decisions/0002-dependencies.md"));
    assert_eq!(without_reason(&manifest, &page), Vec::<String>::new());
    let planted = "[workspace.dependencies]\nleft-pad = \"1\"\nserde = \"1\"\npagelith-io = {}\n";
    assert_eq!(without_reason(planted, &page), ["left-pad"]);
    // Every crate takes its dependencies from the workspace's list.
    for path in super::source::CRATES.iter().flat_map(|dir| files(dir, "Cargo.toml")) {
        let table: toml::Table = text(&path).parse().expect("a manifest");
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in
                table.get(kind).and_then(toml::Value::as_table).into_iter().flatten()
            {
                let shared = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
                let alone = has_row(&page, name);
                // A crate that is its own workspace has no such list.
                let own = name == "pagelith" || name.starts_with("pagelith-");
                assert!(shared || alone || own, "{path}: {name} is not from the workspace's list");
            }
        }
    }
}

/// The first Rust block of a text, without comment marks and marks of hidden lines.
fn example(text: &str, comment: &str, fence: &str) -> String {
    let lines = text.lines().map(|line| line.strip_prefix(comment).unwrap_or(line));
    let block = lines.map(str::trim_end).skip_while(|line| *line != fence).skip(1);
    let block =
        block.take_while(|line| *line != "```").map(|line| line.strip_prefix("# ").unwrap_or(line));
    block.collect::<Vec<_>>().join("\n")
}

#[test]
fn readme_contains_the_crate_example() {
    let readme = example(&text("README.md"), "", "```rust");
    let in_crate = example(&text("engine/src/lib.rs"), "//! ", "```").replace("//!", "");
    assert!(readme.contains("Store::builder"), "{readme}");
    assert_eq!(readme, in_crate);
}
