//! Libraries of the system that are found when the program runs.
//!
//! A library is never unloaded: it keeps threads and function pointers.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

/// A loaded library.
pub(crate) struct DynamicLibrary(NonNull<c_void>);

impl DynamicLibrary {
    /// Load the library at `path`, or the loader's message. A name without a slash is searched as
    /// dlopen(3) does.
    ///
    /// # Safety
    ///
    /// The library's initialisation is sound in this process.
    pub unsafe fn load(path: &str) -> Result<DynamicLibrary, String> {
        let name = CString::new(path).map_err(|_| "the path contains a NUL byte")?;
        // SAFETY: the name is a C string; the caller answers for the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(DynamicLibrary).ok_or_else(|| {
            // SAFETY: the message is a C string of this thread, valid until its next call of these
            // functions; it is copied at once.
            unsafe {
                let message = libc::dlerror();
                if message.is_null() {
                    "dlopen failed".to_owned()
                } else {
                    CStr::from_ptr(message).to_string_lossy().into_owned()
                }
            }
        })
    }

    /// The address of a symbol in its default version, which is the newest.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is of a loaded library, and the name is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// A struct `Functions` with the addresses of a library's functions, by their C names and types.
/// `Functions::of` is unsafe: functions of the library that have these names have these types.
macro_rules! function_table {
    ($($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Addresses of the library's functions.
        #[allow(missing_docs, non_snake_case, reason = "the names are those of the C headers")]
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// The table, or the name of the first function that the library lacks.
            ///
            /// # Safety
            ///
            /// Functions of the library that have these names have these types.
            #[allow(non_snake_case, reason = "the names are those of the C headers")]
            unsafe fn of(
                library: &$crate::dynamic_library::DynamicLibrary,
            ) -> std::result::Result<Functions, &'static str> {
                $(
                    let $name = {
                        let name = stringify!($name);
                        let symbol = std::ffi::CString::new(name).map_err(|_| name)?;
                        let address = library.symbol(&symbol).ok_or(name)?;
                        // SAFETY: the library is never unloaded, and the caller promises that the
                        // function at this address has this type.
                        unsafe {
                            std::mem::transmute::<
                                std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    };
                )*
                Ok(Functions { $($name,)* })
            }
        }
    };
}
pub(crate) use function_table;
