//! Copy-on-write file systems: once they are full, no block of a file that was allocated
//! beforehand can be written either.

use std::os::fd::AsFd;

use rustix::fs::{IFlags, fstatfs, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

/// Of btrfs (include/uapi/linux/magic.h), which writes in place what it is asked to.
const BTRFS: u64 = 0x9123_683e;
/// Of others, which cannot be asked: ZFS and bcachefs.
const OTHERS: [u64; 2] = [0x2fc1_2fc1, 0xca45_1a4e];

fn magic(file: impl AsFd) -> u64 {
    // The kernel's number has 32 bits; the field's width and sign are the machine's.
    fstatfs(file).map_or(0, |s| s.f_type as u64 & 0xffff_ffff)
}

/// Ask for writes in place, of a file that has no bytes yet: afterwards it is too late.
pub fn write_in_place(file: impl AsFd) {
    if magic(&file) == BTRFS {
        // Whether it was granted is what `copies` finds.
        let _: Result<(), Errno> =
            ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::NOCOW));
    }
}

/// Whether the file system copies blocks of this file on write, as far as can be known.
pub(crate) fn copies(file: impl AsFd) -> bool {
    match magic(&file) {
        BTRFS => !ioctl_getflags(&file).is_ok_and(|flags| flags.contains(IFlags::NOCOW)),
        other => OTHERS.contains(&other),
    }
}
