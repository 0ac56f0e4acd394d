//! Compares the declarations of `cuda` with the bindings of `cudarc`, which were made from the
//! headers of CUDA 12.0.

use cudarc::driver::sys;

use super::*;

/// Sizes of the arguments and of the result of a function.
trait Sizes {
    fn sizes() -> Vec<usize>;
}

macro_rules! sizes {
    ($($argument:ident)*) => {
        impl<Result, $($argument),*> Sizes for unsafe fn($($argument),*) -> Result {
            fn sizes() -> Vec<usize> {
                vec![$(size_of::<$argument>(),)* size_of::<Result>()]
            }
        }
        impl<Result, $($argument),*> Sizes for unsafe extern "C" fn($($argument),*) -> Result {
            fn sizes() -> Vec<usize> {
                vec![$(size_of::<$argument>(),)* size_of::<Result>()]
            }
        }
    };
}
sizes!(A);
sizes!(A B);
sizes!(A B C);
sizes!(A B C D);

fn sizes_of<F: Sizes>(_: F) -> Vec<usize> {
    F::sizes()
}

fn sizes_of_field<F: Sizes>(_: fn(&Functions) -> F) -> Vec<usize> {
    F::sizes()
}

macro_rules! compare {
    ($($name:ident($($argument:tt)*);)*) => { $(
        let theirs: unsafe fn($(compare!(@ $argument)),*) -> _ = sys::$name;
        let ours = sizes_of_field(|functions| functions.$name);
        assert_eq!(ours, sizes_of(theirs), stringify!($name));
    )* };
    (@ $argument:tt) => { _ };
}

#[test]
fn functions_have_the_arguments_of_the_headers() {
    compare! {
        cuInit(1);
        cuGetErrorName(1 2);
        cuDriverGetVersion(1);
        cuDeviceGetCount(1);
        cuDeviceGet(1 2);
        cuDeviceGetName(1 2 3);
        cuDeviceGetPCIBusId(1 2 3);
        cuDeviceTotalMem_v2(1 2);
        cuDevicePrimaryCtxGetState(1 2 3);
        cuDevicePrimaryCtxRetain(1 2);
        cuDevicePrimaryCtxRelease_v2(1);
        cuCtxGetCurrent(1);
        cuCtxSetCurrent(1);
        cuCtxGetDevice(1);
        cuMemHostRegister_v2(1 2 3);
        cuMemHostUnregister(1);
        cuPointerGetAttributes(1 2 3 4);
        cuStreamCreate(1 2);
        cuStreamDestroy_v2(1);
        cuStreamWaitEvent(1 2 3);
        cuEventCreate(1 2);
        cuEventDestroy_v2(1);
        cuEventRecord(1 2);
        cuEventQuery(1);
        cuMemcpyHtoDAsync_v2(1 2 3 4);
        cuMemcpyDtoHAsync_v2(1 2 3 4);
    }
}

#[test]
fn constants_are_those_of_the_headers() {
    use sys::cudaError_enum as code;
    for (ours, theirs) in [
        (INVALID_VALUE, code::CUDA_ERROR_INVALID_VALUE),
        (NOT_INITIALIZED, code::CUDA_ERROR_NOT_INITIALIZED),
        (NO_DEVICE, code::CUDA_ERROR_NO_DEVICE),
        (INVALID_CONTEXT, code::CUDA_ERROR_INVALID_CONTEXT),
        (NOT_READY, code::CUDA_ERROR_NOT_READY),
    ] {
        assert_eq!(ours, theirs as c_int, "{theirs:?}");
    }
    use sys::CUpointer_attribute_enum as attribute;
    let attributes = [
        attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    assert_eq!(ATTRIBUTES, attributes.map(|attribute| attribute as c_int));
    assert_eq!(PORTABLE, sys::CU_MEMHOSTREGISTER_PORTABLE);
    assert_eq!(NON_BLOCKING, sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint);
    assert_eq!(DISABLE_TIMING, sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint);
    assert_eq!(MEMORY_OF_DEVICE, sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as c_uint);
}
