//! Reads from a device that cannot read some blocks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagelith_layouts::align::ALIGN;

/// Repeated in place of a block that cannot be read. No structure of a store begins with it, and no
/// payload matches its checksum by accident, as it could if the fill was zeros.
const FILL: &[u8; 16] = b"unreadable block";

/// The result of [`read_blocks`].
pub(crate) struct BlocksRead {
    /// Bytes filled: fewer than the buffer's only at the end of the file.
    pub(crate) bytes: usize,
    /// File offset and error of each block that the device cannot read.
    pub(crate) unreadable: Vec<(u64, io::Error)>,
}

/// Fill `buf` from an aligned offset, up to the end of the file. Blocks that the device cannot read
/// get a content that decodes as damaged.
pub(crate) fn read_blocks(file: &File, path: &Path, offset: u64, buf: &mut [u8]) -> BlocksRead {
    if let Ok(bytes) = read_up_to(file, path, offset, buf) {
        return BlocksRead { bytes, unreadable: Vec::new() };
    }
    let mut read = BlocksRead { bytes: 0, unreadable: Vec::new() };
    for (i, block) in buf.chunks_mut(ALIGN as usize).enumerate() {
        let at = offset + i as u64 * ALIGN;
        let bytes = read_up_to(file, path, at, block).unwrap_or_else(|error| {
            block.iter_mut().zip(FILL.iter().cycle()).for_each(|(b, f)| *b = *f);
            read.unreadable.push((at, error));
            block.len()
        });
        read.bytes += bytes;
        if bytes < block.len() {
            break;
        }
    }
    read
}

/// Fill `buf` from `offset`, up to the end of the file. `path` is that of the file.
pub(super) fn read_up_to(
    file: &File,
    #[cfg_attr(not(test), expect(unused_variables, reason = "for failures in tests"))] path: &Path,
    offset: u64,
    buf: &mut [u8],
) -> io::Result<usize> {
    #[cfg(test)]
    tests::check_readable(path, offset, buf.len() as u64)?;
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
pub(crate) use tests::{block_was_written, fail_reads_of};

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;

    thread_local! {
        static UNREADABLE: RefCell<Vec<(PathBuf, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// Let reads of this thread fail that include one of these blocks, until it is written.
    pub(crate) fn fail_reads_of(blocks: Vec<(PathBuf, u64)>) {
        UNREADABLE.set(blocks);
    }

    /// A device replaces an unreadable block when it is written.
    pub(crate) fn block_was_written(path: &Path, offset: u64, bytes: u64) {
        UNREADABLE.with_borrow_mut(|blocks| {
            blocks.retain(|(p, at)| p != path || *at < offset || *at + ALIGN > offset + bytes);
        });
    }

    pub(super) fn check_readable(path: &Path, offset: u64, bytes: u64) -> io::Result<()> {
        let includes =
            |(p, at): &(PathBuf, u64)| p == path && *at < offset + bytes && offset < *at + ALIGN;
        match UNREADABLE.with_borrow(|blocks| blocks.iter().any(includes)) {
            true => Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())),
            false => Ok(()),
        }
    }

    #[test]
    fn unreadable_block_leaves_the_other_blocks_of_a_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..3 * ALIGN + 100).map(|i| (i / ALIGN) as u8).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        fail_reads_of(vec![(file.path().to_owned(), ALIGN)]);
        let mut buf = vec![9; 5 * ALIGN as usize];
        let read = read_blocks(file.as_file(), file.path(), 0, &mut buf);
        fail_reads_of(Vec::new());
        assert_eq!(read.bytes, bytes.len());
        let unreadable: Vec<u64> = read.unreadable.iter().map(|(at, _)| *at).collect();
        assert_eq!(unreadable, [ALIGN]);
        let (first, rest) = bytes.split_at(ALIGN as usize);
        assert_eq!(&buf[..ALIGN as usize], first);
        assert_eq!(&buf[ALIGN as usize..][..FILL.len()], FILL);
        let after = 2 * ALIGN as usize;
        assert_eq!(&buf[after..bytes.len()], &rest[ALIGN as usize..]);
    }
}
