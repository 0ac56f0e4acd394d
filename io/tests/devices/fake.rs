//! A fake driver with its controls, which stand for the inference engine. Tests of other crates
//! include this file.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;

use pagelith_io::device::{DeviceHandle, DeviceRange, Driver, DriverKind};

#[allow(clippy::duplicate_mod, reason = "the other fake has it too")]
#[path = "../fakes/library.rs"]
mod library;

/// A copy of the fake library, with a state of its own.
pub struct Fake {
    dir: tempfile::TempDir,
    kind: DriverKind,
    change: unsafe extern "C" fn(*const c_char) -> c_int,
    count: unsafe extern "C" fn(*const c_char) -> u64,
    step: unsafe extern "C" fn(),
    start: unsafe extern "C" fn(u32) -> c_int,
    stop: unsafe extern "C" fn(u32),
    other_context: unsafe extern "C" fn(u32),
    current: unsafe extern "C" fn() -> usize,
    leave: unsafe extern "C" fn(),
    allocate: unsafe extern "C" fn(u32, usize) -> u64,
    free: unsafe extern "C" fn(u64),
    peek: unsafe extern "C" fn(u64, *mut u8, usize),
    poke: unsafe extern "C" fn(u64, *const u8, usize),
    stream: unsafe extern "C" fn() -> usize,
    fill: unsafe extern "C" fn(u64, usize, u8, usize) -> c_int,
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

impl Fake {
    /// A driver with this script.
    pub fn new(kind: DriverKind, script: &str) -> Arc<Fake> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(kind.library());
        std::fs::copy(library::built("pagelith-fake-device"), &path).expect("a copy");
        let name = CString::new(path.to_str().expect("a text")).expect("no NUL");
        // SAFETY: the library is the fake one, which is never unloaded, and its functions have the
        // types of the fields.
        let fake = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "cannot load {path:?}");
            Fake {
                dir,
                kind,
                change: function(handle, c"fake_device_change"),
                count: function(handle, c"fake_device_count"),
                step: function(handle, c"fake_device_step"),
                start: function(handle, c"fake_device_start"),
                stop: function(handle, c"fake_device_stop"),
                other_context: function(handle, c"fake_device_other_context"),
                current: function(handle, c"fake_device_current"),
                leave: function(handle, c"fake_device_leave"),
                allocate: function(handle, c"fake_device_allocate"),
                free: function(handle, c"fake_device_free"),
                peek: function(handle, c"fake_device_peek"),
                poke: function(handle, c"fake_device_poke"),
                stream: function(handle, c"fake_device_stream"),
                fill: function(handle, c"fake_device_fill"),
            }
        };
        fake.change(script);
        Arc::new(fake)
    }

    /// A driver with this script, whose device 0 the calling thread initialised and bound.
    pub fn bound(kind: DriverKind, script: &str) -> (Arc<Fake>, DeviceHandle) {
        let fake = Fake::new(kind, script);
        fake.start(0);
        let handle = fake.driver().bind(0).expect("an initialised device");
        (fake, handle)
    }

    /// The path of the library.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(self.kind.library())
    }

    /// The driver.
    pub fn driver(&self) -> Driver {
        let path = self.path();
        // SAFETY: the fake library does what the driver does.
        let loaded = unsafe { Driver::load_from(self.kind, path.to_str().expect("a text")) };
        loaded.expect("the fake driver")
    }

    pub fn change(&self, script: &str) {
        let script = CString::new(script).expect("no NUL");
        // SAFETY: the argument is a C string.
        assert_eq!(unsafe { (self.change)(script.as_ptr()) }, 0, "script {script:?}");
    }

    /// A count: retained, streams, events, locked-chunks, locked-bytes, work, violations.
    pub fn count(&self, what: &str) -> u64 {
        let what = CString::new(what).expect("no NUL");
        // SAFETY: the argument is a C string.
        unsafe { (self.count)(what.as_ptr()) }
    }

    /// Let time pass.
    pub fn step(&self) {
        // SAFETY: the function takes nothing.
        unsafe { (self.step)() }
    }

    /// Initialise a device on the calling thread, as the engine does.
    pub fn start(&self, ordinal: u32) {
        // SAFETY: the function takes a number.
        assert_eq!(unsafe { (self.start)(ordinal) }, 0, "device {ordinal}");
    }

    /// End the engine's use of a device.
    pub fn stop(&self, ordinal: u32) {
        // SAFETY: the function takes a number.
        unsafe { (self.stop)(ordinal) }
    }

    /// Give the calling thread a context that is not primary.
    pub fn enter_other_context(&self, ordinal: u32) {
        // SAFETY: the function takes a number.
        unsafe { (self.other_context)(ordinal) }
    }

    /// The context of the calling thread; 0 for none.
    pub fn current(&self) -> usize {
        // SAFETY: the function takes nothing.
        unsafe { (self.current)() }
    }

    /// Take the calling thread's context away.
    pub fn leave(&self) {
        // SAFETY: the function takes nothing.
        unsafe { (self.leave)() }
    }

    /// Allocate memory of device 0 and name it.
    pub fn memory(self: &Arc<Fake>, handle: &DeviceHandle, bytes: usize) -> DeviceMemory {
        let memory = self.allocate(bytes);
        let keep = Arc::new(Freed { fake: self.clone(), address: memory });
        // SAFETY: the allocation lives as long as `keep`.
        let range = unsafe { handle.range(memory, bytes, keep) }.expect("memory of the device");
        DeviceMemory { fake: self.clone(), address: memory, range }
    }

    /// Allocate memory of device 0.
    pub fn allocate(&self, bytes: usize) -> u64 {
        // SAFETY: the function takes numbers.
        let address = unsafe { (self.allocate)(0, bytes) };
        assert_ne!(address, 0, "out of memory bytes={bytes}");
        address
    }

    /// A stream of the engine, in the calling thread's context.
    pub fn stream(&self) -> usize {
        // SAFETY: the function takes nothing.
        let stream = unsafe { (self.stream)() };
        assert_ne!(stream, 0, "no context");
        stream
    }
}

/// Frees an allocation once nothing keeps it.
struct Freed {
    fake: Arc<Fake>,
    address: u64,
}

impl Drop for Freed {
    fn drop(&mut self) {
        // SAFETY: the allocation is freed once.
        unsafe { (self.fake.free)(self.address) }
    }
}

/// Memory of the engine on device 0.
pub struct DeviceMemory {
    fake: Arc<Fake>,
    pub address: u64,
    pub range: DeviceRange,
}

impl DeviceMemory {
    /// Its bytes now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.range.bytes()];
        // SAFETY: the buffer has that length.
        unsafe { (self.fake.peek)(self.address, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Write its bytes now.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.range.bytes());
        // SAFETY: the buffer has that length.
        unsafe { (self.fake.poke)(self.address, bytes.as_ptr(), bytes.len()) };
    }

    /// Fill it later, as work of this stream.
    pub fn fill_later(&self, value: u8, stream: usize) {
        // SAFETY: the function takes numbers.
        let code = unsafe { (self.fake.fill)(self.address, self.range.bytes(), value, stream) };
        assert_eq!(code, 0);
    }
}
