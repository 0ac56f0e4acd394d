//! A CUDA driver and an Ascend runtime for tests, in one library: devices in memory of the host.
//!
//! Tests load a copy of it by the name of one driver. The devices follow the rules of the drivers,
//! except for the faults of a script (`faults`), which `fake_device_change` sets. The other
//! functions of that prefix stand for the inference engine, which makes contexts and allocates;
//! all else has the names and types of cuda.h and acl/acl_rt.h.

mod ascend;
mod cuda;
mod faults;
mod memory;
mod world;

use std::ffi::{CStr, c_char, c_int, c_void};

use world::{Fault, current, set_current, world};

/// Functions with C names. Each body may use its raw arguments.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => { $(
        /// As in the driver's header, or as the crate's documentation says.
        ///
        /// # Safety
        ///
        /// Pointers are to variables of the caller, to C strings, or objects of this library.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some bodies use no raw argument")]
        #[allow(non_snake_case, reason = "the drivers' names")]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps to the documentation.
            unsafe { $body }
        }
    )* };
}
pub(crate) use exported;

/// The name of an object, from a pointer that is never accessed.
pub(crate) fn name_of(object: *mut c_void) -> usize {
    object.addr()
}

pub(crate) fn object(name: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(name)
}

/// The address of host memory.
pub(crate) fn host(address: *const c_void) -> usize {
    address.expose_provenance()
}

exported! {
    fn fake_device_change(script: *const c_char) -> c_int {
        let script = CStr::from_ptr(script).to_str().unwrap_or("=");
        world().change(script).map_or(-1, |()| 0)
    }

    fn fake_device_count(what: *const c_char) -> u64 {
        world().count(CStr::from_ptr(what).to_str().unwrap_or(""))
    }

    fn fake_device_step() {
        world().step();
    }

    // Initialise a device: its primary context becomes the thread's.
    fn fake_device_start(ordinal: u32) -> c_int {
        match world().start(ordinal) {
            Ok(context) => {
                set_current(context);
                0
            }
            Err(_) => -1,
        }
    }

    // End the engine's use of a device.
    fn fake_device_stop(ordinal: u32) {
        world().stop(ordinal);
    }

    // Make a context that is not primary, and make it the thread's.
    fn fake_device_other_context(ordinal: u32) {
        let context = world().new_context(ordinal);
        set_current(context);
    }

    fn fake_device_current() -> usize {
        current()
    }

    fn fake_device_leave() {
        set_current(0);
    }

    fn fake_device_allocate(ordinal: u32, bytes: usize) -> u64 {
        world().allocate(ordinal, bytes).unwrap_or(0)
    }

    fn fake_device_free(address: u64) {
        world().free(address);
    }

    fn fake_device_peek(address: u64, to: *mut u8, bytes: usize) {
        world().peek(address, std::slice::from_raw_parts_mut(to, bytes));
    }

    fn fake_device_poke(address: u64, from: *const u8, bytes: usize) {
        world().poke(address, std::slice::from_raw_parts(from, bytes));
    }

    fn fake_device_stream() -> usize {
        world().new_stream().unwrap_or(0)
    }

    fn fake_device_fill(address: u64, bytes: usize, value: u8, stream: usize) -> c_int {
        world().fill(address, bytes, value, stream).map_or(-1, |()| 0)
    }
}

/// The code of a result.
pub(crate) fn status(result: world::Result<()>, code: fn(Fault) -> c_int) -> c_int {
    result.err().map_or(0, code)
}
