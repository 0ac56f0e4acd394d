//! Store files that were replaced by links or pipes: nothing is read or written through them.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::filled_store::FilledStore;

/// The kind of a replacement, a part of the error message, and its constructor.
type Planted = (&'static str, &'static str, fn(&Path, &Path));

/// `away` is the original file under another name.
const PLANTED: [Planted; 3] = [
    ("a symbolic link", "symbolic link", |path, away| symlink(away, path).expect("a link")),
    ("a hard link", "links=2", |path, away| std::fs::hard_link(away, path).expect("a link")),
    ("a pipe", "not a regular file", |path, _| {
        assert!(Command::new("mkfifo").arg(path).status().expect("run").success());
    }),
];

/// All files of a store with two directories.
fn files(filled: &FilledStore) -> Vec<PathBuf> {
    let listed = filled.dirs.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a directory"));
    let files: Vec<_> = listed.map(|entry| entry.expect("an entry").path()).collect();
    let names = |name: &str| files.iter().filter(|path| path.ends_with(name)).count();
    assert_eq!((files.len(), names("LOCK"), names("segments")), (7, 1, 2), "{files:?}");
    files
}

#[test]
fn store_with_a_replaced_file_is_not_opened() {
    let filled = FilledStore::new(2, true);
    let elsewhere =
        tempfile::tempdir_in(filled.dirs[0].parent().expect("a parent")).expect("a directory");
    let away = elsewhere.path().join("away");
    for path in files(&filled) {
        std::fs::rename(&path, &away).expect("moved");
        let before = std::fs::read(&away).expect("read");
        for (what, why, plant) in PLANTED {
            plant(&path, &away);
            let refused = filled.try_open().map(drop).expect_err("refused").to_string();
            assert!(refused.contains(why), "{what} in place of {path:?}: {refused}");
            std::fs::remove_file(&path).expect("removed");
        }
        assert!(std::fs::read(&away).expect("read") == before, "written through {path:?}");
        std::fs::rename(&away, &path).expect("moved back");
    }
    assert_eq!(filled.missing(), Vec::<u64>::new());
}

#[test]
fn verify_and_inspect_do_not_follow_links_or_block_on_pipes() {
    let filled = FilledStore::new(1, true);
    let away = filled.dirs[0].parent().expect("a parent").join("away");
    for path in files_of_one(&filled) {
        std::fs::rename(&path, &away).expect("moved");
        let before = std::fs::read(&away).expect("read");
        for (what, _, plant) in PLANTED {
            plant(&path, &away);
            for command in [&["inspect"][..], &["verify"], &["verify", "--repair"]] {
                let mut program = common::without_settings(Command::new("timeout"));
                program
                    .args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_pagelith")])
                    .args(command)
                    .arg(&filled.dirs[0]);
                let output = program.output().expect("run");
                // `None` after SIGKILL, 137 from `timeout`, 101 after a panic.
                let ended = output.status.code();
                assert!(
                    ended.is_some_and(|code| code != 137 && code != 101),
                    "{command:?} {what} in place of {path:?}: {output:?}"
                );
            }
            assert!(
                std::fs::read(&away).expect("read") == before,
                "{what}: written through {path:?}"
            );
            let _ = std::fs::remove_file(&path);
        }
        let _ = std::fs::rename(&away, &path);
    }
}

/// For example after a backup by hard links: the file cannot be locked, so an engine may have the
/// store open.
#[test]
fn repair_with_a_hard_linked_file_changes_nothing() {
    let filled = FilledStore::new(1, false);
    let segment = filled.segments()[0];
    let place = filled.records(segment).swap_remove(0);
    filled.flip(segment, place.offset + place.bytes - 1);
    let (segments, _) = filled.location(segment);
    std::fs::hard_link(&segments, segments.with_extension("backup")).expect("a second name");
    let contents = || -> Vec<_> {
        let paths = files_of_one(&filled).into_iter();
        paths
            .map(|path| {
                (
                    std::fs::metadata(&path).expect("a file").ino(),
                    std::fs::read(&path).expect("read"),
                )
            })
            .collect()
    };
    let before = contents();
    let ran =
        common::pagelith(&["verify".as_ref(), "--repair".as_ref(), filled.dirs[0].as_os_str()]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("cannot repair, a file cannot be locked"),
        "{ran:?}"
    );
    assert!(contents() == before, "a file was changed");
}

fn files_of_one(filled: &FilledStore) -> Vec<PathBuf> {
    std::fs::read_dir(&filled.dirs[0])
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

/// Needs root; skipped otherwise.
#[test]
fn store_with_a_file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Not captured by the test harness: a skip must be visible.
        let _ = writeln!(std::io::stderr(), "skipped: store_files: only root gives files away");
        return;
    }
    let filled = FilledStore::new(2, true);
    for path in files(&filled) {
        chown(&path, Some(12345), None).expect("given away");
        let refused = filled.try_open().map(drop).expect_err("refused").to_string();
        assert!(
            refused.contains("belongs to another user") && refused.contains("owner=12345"),
            "{path:?}: {refused}"
        );
        chown(&path, Some(0), None).expect("taken back");
    }
    assert_eq!(filled.missing(), Vec::<u64>::new());
}
