//! Field tables: each structure of the format is declared once, as a `Pod` type with a compile-time
//! size. Its table of offsets comes from the same declaration; `docs/format.md` is rendered from
//! these tables.

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in the code.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
    /// Type in the code.
    pub ty: &'static str,
    /// Its meaning.
    pub doc: &'static str,
}

/// One structure of the format.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Name in the code.
    pub name: &'static str,
    /// Length in bytes.
    pub size: usize,
    /// Its meaning.
    pub doc: &'static str,
    /// Its fields, by offset.
    pub fields: &'static [Field],
}

/// Declare a structure of the format: a `Pod` struct without padding, of the stated size.
macro_rules! structure {
    ($(#[doc = $doc:literal])+ $vis:vis struct $name:ident = $size:literal {
        $($(#[doc = $fdoc:literal])+ $fvis:vis $field:ident: $ty:ty,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        $vis struct $name { $($(#[doc = $fdoc])+ $fvis $field: $ty,)+ }

        const _: () = assert!(std::mem::size_of::<$name>() == $size);

        impl $name {
            /// Length in bytes.
            pub const BYTES: usize = $size;
            /// The structure's field table.
            pub const STRUCTURE: $crate::format::Structure = $crate::format::Structure {
                name: stringify!($name),
                size: $size,
                doc: concat!($($doc),+),
                fields: &[$($crate::format::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    size: std::mem::size_of::<$ty>(),
                    ty: stringify!($ty),
                    doc: concat!($($fdoc),+),
                },)+],
            };
        }
    };
}
pub(crate) use structure;

/// The format version that this build writes, and the newest one that it reads.
pub const VERSION: u16 = 1;

/// Read a structure from the start of `bytes`; `None` if `bytes` is too short.
pub(crate) fn read<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Option<T> {
    bytes.get(..std::mem::size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// Whether a stored counter is valid. Counters start at 1, and incrementing a value read from a
/// file must not overflow.
pub(crate) const fn is_valid_counter(value: u64) -> bool {
    value != 0 && value != u64::MAX
}

/// Whether all of `bytes` are zero. Reserved fields must be zero, so that a later version can use
/// them.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Branch-free inside a 64-byte line, which compiles to vector compares: headers are mostly
    // padding.
    let (lines, rest) = bytes.as_chunks();
    lines.iter().all(|line| is_zero_line(*line)) && rest.iter().all(|b| *b == 0)
}

fn is_zero_line(line: [u8; 64]) -> bool {
    bytemuck::cast::<_, [u64; 8]>(line).iter().fold(0, |any, word| any | word) == 0
}

/// Set all of `bytes` to zero. Lines that are zero already are not written: another core may have
/// cached a buffer that was written to disk before, and a store to a shared cache line stalls.
pub(crate) fn clear(bytes: &mut [u8]) {
    bytes.chunks_mut(64).filter(|line| !is_zero(line)).for_each(|line| line.fill(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_past_end_is_none() {
        assert_eq!(read::<u32>(&[1, 0, 0]), None);
        assert_eq!(read::<u32>(&[1, 0, 0, 0, 9]), Some(1));
        assert!(is_zero(&[0; 3]) && !is_zero(&[0, 1]));
    }

    #[test]
    fn nonzero_byte_at_any_offset_is_detected_and_cleared() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut bytes = vec![0u8; len];
            assert!(is_zero(&bytes));
            for at in 0..len {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "len={len} at={at}");
                clear(&mut bytes);
                assert!(is_zero(&bytes) && bytes[at] == 0, "len={len} at={at}");
            }
            bytes.fill(1);
            clear(&mut bytes);
            assert!(bytes.iter().all(|b| *b == 0), "len={len}");
        }
    }
}
