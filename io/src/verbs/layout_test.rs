//! The types and constants of `abi` against those of the installed `infiniband/verbs.h`.

#![allow(clippy::disallowed_methods, reason = "writes and compiles a C program")]
#![allow(clippy::print_stdout, reason = "the test says that it is skipped")]

use std::fmt::Write;
use std::process::Command;

use super::abi;

/// A C program that prints the value of each expression, a line each.
fn program(expressions: &[(String, i64)]) -> String {
    let mut text = "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
                    int main(void) {\n"
        .to_owned();
    for (expression, _) in expressions {
        writeln!(text, "  printf(\"%lld\\n\", (long long)({expression}));").expect("a string");
    }
    text + "  return 0;\n}\n"
}

/// Expressions whose value in the header differs; `None` without the header.
fn differences(expected: &[(String, i64)]) -> Option<Vec<String>> {
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: no infiniband/verbs.h");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&source, program(expected)).expect("a file");
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output().expect("cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().expect("the program");
    let printed = String::from_utf8(output.stdout).expect("text");
    let found: Vec<i64> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(found.len(), expected.len());
    let pairs = expected.iter().zip(found).filter(|((_, here), header)| here != header);
    Some(pairs.map(|((c, here), header)| format!("{c}: {here}, header {header}")).collect())
}

#[test]
fn layout_equals_header_of_installed_library() {
    let mut expected: Vec<(String, i64)> = abi::layout().into_iter().chain(abi::values()).collect();
    assert!(expected.len() > 200, "expressions={}", expected.len());
    // A planted error, so that the comparison is known to find one.
    expected.push(("sizeof(struct ibv_sge)".into(), 17));
    if let Some(found) = differences(&expected) {
        assert_eq!(found, ["sizeof(struct ibv_sge): 17, header 16"]);
    }
}
