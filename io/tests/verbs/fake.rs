//! The verbs library of the tests: the fake one with its controls, or the one that
//! `TEST_PAGELITH_VERBS` names. Tests of other crates include this file.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use pagelith_io::verbs::Library;

#[allow(clippy::duplicate_mod, reason = "the other fake has it too")]
#[path = "../fakes/library.rs"]
mod library;

/// The path of the fake library.
pub fn fake_path() -> PathBuf {
    library::built("pagelith-fake-verbs")
}

/// Another copy of the fake library, with a state of its own.
pub fn copied() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("libibverbs.so.1");
    std::fs::copy(fake_path(), &path).expect("a copy");
    (dir, path)
}

/// The path of another library than the fake one.
fn real_path() -> Option<String> {
    std::env::var("TEST_PAGELITH_VERBS").ok().filter(|path| !path.is_empty())
}

pub fn is_real() -> bool {
    real_path().is_some()
}

/// Load a verbs library, the fake one or the system's.
pub fn load(path: &Path) -> Arc<Library> {
    // SAFETY: tests name verbs libraries only.
    unsafe { Library::load_from(path.to_str().expect("a text")) }.expect("a verbs library")
}

static LIBRARY: LazyLock<Arc<Library>> =
    LazyLock::new(|| load(&real_path().map_or_else(fake_path, PathBuf::from)));

/// The library of the tests.
pub fn library() -> &'static Arc<Library> {
    &LIBRARY
}

/// A function of a library.
///
/// # Safety
///
/// `F` is the type of the function of this name, and the library is never unloaded.
unsafe fn function<F: Copy>(handle: *mut libc::c_void, name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut libc::c_void>());
    // SAFETY: the handle is of a library, and the caller named the function's type.
    unsafe {
        let found = libc::dlsym(handle, name.as_ptr());
        assert!(!found.is_null(), "{name:?}");
        std::mem::transmute_copy(&found)
    }
}

/// The controls of a fake library.
pub struct Fake {
    device: unsafe extern "C" fn(*const c_char) -> u32,
    change: unsafe extern "C" fn(u32, *const c_char) -> c_int,
    count: unsafe extern "C" fn(u32, *const c_char) -> u64,
    no_kernel: unsafe extern "C" fn(),
    step: unsafe extern "C" fn(),
}

impl Fake {
    /// The controls of the fake library at `path`, which shares its state with each loading of it.
    pub fn at(path: &Path) -> Fake {
        let path = CString::new(path.to_str().expect("a text")).expect("no NUL");
        // SAFETY: the library is the fake one, which is never unloaded, and its functions have the
        // types of the fields.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "cannot load {path:?}");
            Fake {
                device: function(handle, c"fake_verbs_device"),
                change: function(handle, c"fake_verbs_change"),
                count: function(handle, c"fake_verbs_count"),
                no_kernel: function(handle, c"fake_verbs_no_kernel"),
                step: function(handle, c"fake_verbs_step"),
            }
        }
    }

    /// A new device with this script. Its name ends with its number.
    pub fn device(&self, script: &str) -> u32 {
        let script = CString::new(script).expect("no NUL");
        // SAFETY: the argument is a C string.
        let number = unsafe { (self.device)(script.as_ptr()) };
        assert!(number > 0, "script {script:?}");
        number
    }

    pub fn change(&self, device: u32, script: &str) {
        let script = CString::new(script).expect("no NUL");
        // SAFETY: the argument is a C string.
        assert_eq!(unsafe { (self.change)(device, script.as_ptr()) }, 0, "script {script:?}");
    }

    /// The number of a device's objects of one kind.
    pub fn count(&self, device: u32, what: &str) -> u64 {
        let what = CString::new(what).expect("no NUL");
        // SAFETY: the argument is a C string.
        unsafe { (self.count)(device, what.as_ptr()) }
    }

    /// Objects of every kind that a device has.
    pub fn objects(&self, device: u32) -> u64 {
        let kinds = ["contexts", "domains", "regions", "channels", "queues", "pairs"];
        kinds.iter().map(|kind| self.count(device, kind)).sum()
    }

    /// Let time pass.
    pub fn step(&self) {
        // SAFETY: the function takes nothing.
        unsafe { (self.step)() }
    }

    pub fn remove_kernel_support(&self) {
        // SAFETY: the function takes nothing.
        unsafe { (self.no_kernel)() }
    }
}

/// The fake library's controls; `None`, and a line that says so, over a real library.
pub fn fake() -> Option<Fake> {
    if is_real() {
        println!("skipped: needs the fake library");
        return None;
    }
    Some(Fake::at(&fake_path()))
}
