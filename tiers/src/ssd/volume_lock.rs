//! The locks of a store's files, and their owner in the LOCK file.

use std::time::Duration;

use pagelith_io::disk::{Disk, FileId};
use pagelith_io::fault::FaultKind;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::names;

use super::volume_error::VolumeError;

/// How a store's files are opened.
pub struct Opening<'a> {
    /// Written to the LOCK file, for people.
    pub owner: &'a str,
    /// Longest duration of one read or write.
    pub timeout: Duration,
    /// Called with the content of the LOCK file if another opener holds a lock: waits, and returns
    /// whether to try it again.
    pub retry_locked: &'a dyn Fn(&str) -> bool,
}

/// Open and lock a file of the store.
pub(super) fn lock(
    disk: &dyn Disk,
    dir: usize,
    name: &'static str,
    opening: &Opening<'_>,
) -> Result<(FileId, u64), VolumeError> {
    loop {
        let fault = match disk.open(dir, name) {
            Ok(opened) => return Ok(opened),
            Err(fault) => fault,
        };
        match fault.kind {
            FaultKind::Locked => {
                let owner = owner_of(disk).unwrap_or_else(|| "unknown".into());
                if !(opening.retry_locked)(&owner) {
                    let dir = disk.dir_name(dir);
                    return Err(VolumeError::Locked { dir, file: name.into(), owner });
                }
            }
            FaultKind::NotFound => {
                return Err(VolumeError::Missing { dir: disk.dir_name(dir), file: name });
            }
            _ => return Err(VolumeError::Io(fault)),
        }
    }
}

/// The content of the LOCK file, if it is printable.
fn owner_of(disk: &dyn Disk) -> Option<String> {
    let bytes = disk.read_prefix(0, names::LOCK)?;
    let text = String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned();
    (!text.is_empty() && !text.contains(char::is_control)).then_some(text)
}

/// What is written of the owner to the LOCK file.
pub(super) fn lock_text(owner: &str) -> &[u8] {
    owner.as_bytes().get(..ALIGN as usize).unwrap_or(owner.as_bytes())
}
