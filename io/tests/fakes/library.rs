//! Finds a fake library. Tests of other crates include this file.

use std::path::{Path, PathBuf};

/// The shared library of a package of fakes, which cargo builds with the test.
pub fn built(package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let name = format!("lib{}.so", package.replace('-', "_"));
    let near = test.ancestors().skip(1).take(2).map(|dir| dir.join(&name)).find(|at| at.exists());
    let found = near.or_else(|| newest_build(&test, package, &name));
    found.unwrap_or_else(|| panic!("no {name} next to {}, or in a build folder", test.display()))
}

/// Cargo 1.101 (nightly) builds each unit in a folder of its own, `build/PACKAGE/HASH/out`.
fn newest_build(test: &Path, package: &str, name: &str) -> Option<PathBuf> {
    let build = test.ancestors().find(|dir| dir.ends_with("build"))?;
    let units = std::fs::read_dir(build.join(package)).ok()?;
    let libraries = units.filter_map(|unit| Some(unit.ok()?.path().join("out").join(name)));
    libraries
        .filter(|at| at.exists())
        .max_by_key(|at| at.metadata().and_then(|of| of.modified()).ok())
}
