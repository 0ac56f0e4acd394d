//! The functions of libibverbs, found when the program runs.
//!
//! The library is never unloaded: its providers keep threads and function pointers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{
    AsyncEvent, Channel, Context, Cq, DeviceAttr, DeviceEntry, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr,
};
use super::error::{Result, VerbsError, last_errno};
use crate::dynamic_library::{DynamicLibrary, function_table};

/// The library's name on every distribution.
pub const LIBRARY: &str = "libibverbs.so.1";

function_table! {
    ibv_get_device_list(*mut c_int) -> *mut *mut DeviceEntry;
    ibv_free_device_list(*mut *mut DeviceEntry);
    ibv_get_device_name(*mut DeviceEntry) -> *const c_char;
    ibv_open_device(*mut DeviceEntry) -> *mut Context;
    ibv_close_device(*mut Context) -> c_int;
    ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    ibv_alloc_pd(*mut Context) -> *mut Pd;
    ibv_dealloc_pd(*mut Pd) -> c_int;
    ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr(*mut Mr) -> c_int;
    ibv_create_comp_channel(*mut Context) -> *mut Channel;
    ibv_destroy_comp_channel(*mut Channel) -> c_int;
    ibv_create_cq(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    ibv_destroy_cq(*mut Cq) -> c_int;
    ibv_get_cq_event(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut Cq, c_uint);
    ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    ibv_destroy_qp(*mut Qp) -> c_int;
    ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event(*mut AsyncEvent);
}

/// A loaded verbs library.
pub struct Library {
    path: String,
    pub(super) functions: Functions,
}

impl Library {
    /// Load the system's library, [`LIBRARY`].
    pub fn load() -> Result<Arc<Library>> {
        // SAFETY: this name belongs to libibverbs, on every distribution.
        unsafe { Library::load_from(LIBRARY) }
    }

    /// Load the library at `path`. A name without a slash is searched as dlopen(3) does.
    ///
    /// # Safety
    ///
    /// Functions of the library that have names of libibverbs do what those do.
    pub unsafe fn load_from(path: &str) -> Result<Arc<Library>> {
        let absent = |reason: &str| VerbsError::LibraryAbsent {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        // SAFETY: the caller names a verbs library, which may be loaded at any time.
        let library = unsafe { DynamicLibrary::load(path) }.map_err(|reason| absent(&reason))?;
        // The default versions of the symbols are IBVERBS_1.1 and later, whose types are those of
        // `abi`, and not IBVERBS_1.0.
        // SAFETY: the types are the declarations in infiniband/verbs.h.
        let functions = unsafe { Functions::of(&library) }
            .map_err(|symbol| VerbsError::LibraryUnusable { path: path.to_owned(), symbol })?;
        Ok(Arc::new(Library { path: path.to_owned(), functions }))
    }

    /// The name or path that was loaded.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A pointer to an object of the library, which its owner destroys.
#[derive(Debug)]
pub(super) struct Handle<T>(NonNull<T>);

// SAFETY: verbs objects are not bound to a thread, and the library locks them itself
// (ibv_open_device(3): "verbs are thread-safe").
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above. Fields are read only where nothing writes them after creation.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The handle of what `call` returned; null is an error, with its errno.
    pub(super) fn new(object: *mut T, call: &'static str, device: &str) -> Result<Handle<T>> {
        NonNull::new(object).map(Handle).ok_or_else(|| VerbsError::CallFailed {
            call,
            device: device.to_owned(),
            errno: last_errno(),
        })
    }

    pub(super) fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// The result of a call that returns 0 or an errno, positive or negative.
pub(super) fn check(status: c_int, call: &'static str, device: &str) -> Result<()> {
    match status {
        0 => Ok(()),
        // Some functions return -1 and set errno.
        -1 => Err(VerbsError::CallFailed { call, device: device.to_owned(), errno: last_errno() }),
        errno => {
            let errno = errno.saturating_abs();
            Err(VerbsError::CallFailed { call, device: device.to_owned(), errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_from(path: &str) -> VerbsError {
        // SAFETY: no library of these tests has functions with names of libibverbs.
        unsafe { Library::load_from(path) }.expect_err("no verbs library")
    }

    #[test]
    fn absent_library_is_reported_with_remedy() {
        let error = load_from("/nowhere/libibverbs.so.1");
        let text = error.to_string();
        assert!(text.starts_with("no verbs library: "), "{text}");
        assert!(text.contains("install libibverbs1"), "{text}");
        assert!(text.ends_with("path=/nowhere/libibverbs.so.1"), "{text}");
    }

    #[test]
    fn library_without_verbs_names_missing_function() {
        let error = load_from("libc.so.6");
        let symbol = "ibv_get_device_list";
        assert_eq!(error, VerbsError::LibraryUnusable { path: "libc.so.6".into(), symbol });
    }

    #[test]
    fn path_with_nul_byte_is_refused() {
        let error = load_from("a\0b");
        assert!(error.to_string().contains("NUL byte"), "{error}");
    }
}
