//! A store with drives that are not mounted: every command reports the directory, and nothing is
//! written or created without `--drop-missing-dirs`.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use common::filled_store::{FilledStore, PAGES};
use common::{ProgramOutput, pagelith};
use pagelith::ErrorKind;

const COMMANDS: [&[&str]; 4] =
    [&["inspect"], &["verify"], &["verify", "--repair"], &["verify", "--repair=keep"]];

fn run(f: &FilledStore, command: &[&str]) -> ProgramOutput {
    let mut args: Vec<OsString> = command.iter().map(Into::into).collect();
    args.extend(f.dirs.iter().map(|d| d.as_os_str().to_owned()));
    pagelith(&args)
}

/// All files in the directories, with their content.
fn contents(f: &FilledStore) -> Vec<(PathBuf, Vec<u8>)> {
    let there = f.dirs.iter().filter(|d| d.exists());
    let entries = there.flat_map(|d| fs::read_dir(d).unwrap()).map(|e| e.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|p| p.is_file()).map(|p| (p.clone(), fs::read(p).unwrap())).collect();
    files.sort();
    files
}

/// Remove the drives: their directories become empty (`remains`) or missing.
fn unmount(f: &FilledStore, which: &[usize], remains: bool) {
    for i in which {
        fs::rename(&f.dirs[*i], away(&f.dirs[*i])).unwrap();
        if remains {
            // As in a new file system.
            fs::create_dir_all(f.dirs[*i].join("lost+found")).unwrap();
        }
    }
}

fn mount(f: &FilledStore, which: &[usize]) {
    for i in which {
        if f.dirs[*i].exists() {
            fs::remove_dir_all(&f.dirs[*i]).unwrap();
        }
        fs::rename(away(&f.dirs[*i]), &f.dirs[*i]).unwrap();
    }
}

fn away(dir: &Path) -> PathBuf {
    dir.with_extension("away")
}

#[test]
fn store_with_missing_drives_is_refused_until_they_are_mounted() {
    let f = FilledStore::new(3, true);
    let whole = contents(&f);
    for missing in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]] {
        for remains in [true, false] {
            unmount(&f, missing, remains);
            let before = contents(&f);
            let (number, dir) = (missing[0] + 1, f.dirs[missing[0]].display());
            let says = format!(
                "directory {number} of 3 holds no file of the store, is its drive mounted?"
            );
            for command in COMMANDS {
                let ran = run(&f, command);
                assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{command:?} {ran:?}");
                assert!(ran.stderr.contains(&format!("{says} dir={dir}")), "{command:?} {ran:?}");
                let repairs = command.len() > 1;
                assert_eq!(
                    ran.stderr.contains("repair would drop"),
                    repairs,
                    "{command:?} {ran:?}"
                );
                assert_eq!(
                    ran.stderr.contains("--drop-missing-dirs"),
                    repairs,
                    "{command:?} {ran:?}"
                );
            }
            let error = f.try_open().map(|_| ()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert!(error.message.contains(&says), "{error}");
            assert!(before == contents(&f), "something was written missing={missing:?}");
            mount(&f, missing);
        }
    }
    assert!(whole == contents(&f));
    assert_eq!(f.missing(), Vec::<u64>::new());
}

#[test]
fn repair_reports_what_it_would_drop_before_it_drops() {
    let f = FilledStore::new(2, true);
    unmount(&f, &[1], true);
    let message = |flag: &str| run(&f, &["verify", flag]).stderr;
    let number = |text: &str, name: &str| -> u64 {
        let at = text.find(name).unwrap_or_else(|| panic!("{name} {text}")) + name.len();
        text[at..].split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let (drop, keep) = (message("--repair"), message("--repair=keep"));
    assert!(number(&drop, "segments=") > number(&keep, "segments="), "{drop} {keep}");
    assert_eq!(number(&keep, "objects="), 0, "kept objects are not dropped: {keep}");
    let promised = number(&drop, "objects=");
    let ran = run(&f, &["verify", "--json", "--repair", "--drop-missing-dirs"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["dropped_objects"], promised, "{ran:?}");
    assert_eq!(run(&f, &["verify"]).code, Some(0));
}

#[test]
fn repair_with_drop_missing_dirs_makes_the_store_usable() {
    for lost in 0..3 {
        for how in ["--repair", "--repair=keep"] {
            let f = FilledStore::new(3, true);
            unmount(&f, &[lost], false);
            let ran = run(&f, &["verify", how, "--drop-missing-dirs"]);
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(
                ran.stderr.contains("the directory does not exist, create it first"),
                "{ran:?}"
            );
            fs::create_dir(&f.dirs[lost]).unwrap();
            let ran = run(&f, &["verify", how, "--drop-missing-dirs"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert_eq!(run(&f, &["verify"]).code, Some(0));
            let missing =
                f.missing_without_clears(if how == "--repair" { &f.removed } else { &[] });
            assert!(missing.len() <= PAGES as usize, "it opens");
        }
    }
}

#[test]
fn store_with_all_drives_missing_is_not_found() {
    let f = FilledStore::new(2, true);
    unmount(&f, &[0, 1], true);
    for command in COMMANDS {
        let ran = run(&f, command);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.stderr.contains("no file of a store is there, is the drive mounted?"),
            "{ran:?}"
        );
    }
}

#[test]
fn missing_segments_file_is_dropped_only_on_request() {
    for how in ["--repair", "--repair=keep"] {
        let f = FilledStore::new(2, true);
        let (file, elsewhere) = (f.dirs[1].join("segments"), f.dirs[1].with_extension("elsewhere"));
        fs::rename(&file, &elsewhere).unwrap();
        let before = contents(&f);
        let refused = |message: &str| {
            let ran = run(&f, &["verify", how]);
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(ran.stderr.contains(message), "{ran:?}");
        };
        refused("directory 2 of 2 has no file segments, is it on a drive that is not mounted?");
        std::os::unix::fs::symlink(f.dirs[1].join("nowhere"), &file).unwrap();
        refused("a symbolic link in place of a file of the store");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        refused("not a regular file");
        fs::remove_dir(&file).unwrap();
        assert!(contents(&f) == before, "nothing is written");
        fs::rename(&elsewhere, &file).unwrap();
        assert_eq!(run(&f, &["verify"]).code, Some(0));
    }
}
