//! Opens the files of a store, after the last writes of a process that was killed.

use std::time::Duration;

use pagelith_io::lock_owner;
use pagelith_io::runtime::Env;
use pagelith_io::signal::Signal;
use pagelith_tiers::ssd::volume::{OpenedVolume, Opening, VolumeError, open_or_create};

use crate::api::error::{Error, ErrorKind, Result};
use crate::config::ValidConfig;

/// Longest wait for the last writes of a killed process. Its devices have far less in flight, but a
/// process that it forked may hold the locks for ever.
const LAST_WRITES_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two tries to lock a file.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Open or create the files. `timeout` is the longest duration of one read or write.
pub fn open_volume(config: &ValidConfig, env: &Env, timeout: Duration) -> Result<OpenedVolume> {
    let Some(disk) = env.disk.clone() else {
        return Err(Error::new(ErrorKind::Internal, "no disk for the ssd tier"));
    };
    let dirs = disk.dirs() as u32;
    let geometry = config.geometry(dirs);
    let geometry =
        geometry.ok_or_else(|| Error::invalid(format!("ssd.bytes: too small dirs={dirs}")))?;
    let began = env.clock.now();
    let never = Signal::default();
    // The last writes of a process that was killed hold its locks until they have reached the
    // device.
    let retry_locked = |owner: &str| {
        let retries =
            lock_owner::has_ended(owner) && env.clock.now().since(began) < LAST_WRITES_WAIT_MAX;
        if retries {
            env.runtime.pause(&never, never.value(), LOCK_RETRY);
        }
        retries
    };
    let owner = lock_owner::this_process();
    let opening = Opening { owner: &owner, timeout, retry_locked: &retry_locked };
    let opened = open_or_create(disk.clone(), geometry, &*env.entropy, &opening);
    opened.map_err(|error| {
        let mut error = volume_error(error);
        if error.kind == ErrorKind::Damaged {
            let dirs: Vec<String> = (0..disk.dirs()).map(|dir| disk.dir_name(dir)).collect();
            let dirs = dirs.join(" ");
            error.message += &format!(
                "; `pagelith verify {dirs}` says what is damaged, `pagelith verify --repair {dirs}` drops it"
            );
        }
        error
    })
}

fn volume_error(error: VolumeError) -> Error {
    let kind = match &error {
        VolumeError::Io(fault) => return Error::from(fault.clone()).context("open store"),
        VolumeError::NotAStore { .. } => ErrorKind::Invalid,
        VolumeError::Locked { .. } => ErrorKind::Denied,
        VolumeError::NoDrive { .. } => ErrorKind::Unavailable,
        VolumeError::Missing { .. } | VolumeError::Length { .. } => ErrorKind::Damaged,
        VolumeError::Manifest { error: inner, .. } => {
            return Error::format(inner, error.to_string());
        }
        VolumeError::Incompatible { .. } | VolumeError::Misplaced { .. } => ErrorKind::Incompatible,
    };
    Error::new(kind, error.to_string())
}
