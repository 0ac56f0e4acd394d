//! Copy-on-write file systems. Once such a file system is full, writes fail also to blocks of a
//! file that was allocated beforehand.

use std::os::fd::AsFd;

use rustix::fs::{IFlags, fstatfs, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

/// Magic number of btrfs (include/uapi/linux/magic.h), which writes in place if asked to.
const BTRFS: u64 = 0x9123_683e;
/// Magic numbers of ZFS and bcachefs, which have no such request.
const ZFS_BCACHEFS: [u64; 2] = [0x2fc1_2fc1, 0xca45_1a4e];

fn magic(file: impl AsFd) -> u64 {
    // The kernel's number has 32 bits; width and sign of the field depend on the machine.
    fstatfs(file).map_or(0, |s| s.f_type as u64 & 0xffff_ffff)
}

/// Request writes in place for a file that has no bytes yet; the request has no effect later.
pub fn write_in_place(file: impl AsFd) {
    if magic(&file) == BTRFS {
        // `copies` finds out whether the request was granted.
        let _: Result<(), Errno> =
            ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::NOCOW));
    }
}

/// Whether the file system copies blocks of this file on write, as far as that can be determined.
pub(crate) fn copies(file: impl AsFd) -> bool {
    match magic(&file) {
        BTRFS => !ioctl_getflags(&file).is_ok_and(|flags| flags.contains(IFlags::NOCOW)),
        other => ZFS_BCACHEFS.contains(&other),
    }
}
