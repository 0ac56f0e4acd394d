//! Opens a store with a few calls. Each setting of [`Config`] can also be set.

use std::fmt::Display;
use std::path::PathBuf;

use crate::api::error::{Error, Result};
use crate::config::{Config, ConfigError, MachineLimits, Problem, Size};
use crate::store::embedded::Store;

/// Collects settings and opens a store: [`Store::builder`]. A size is a [`Size`] or a text such as
/// `"8GiB"`.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct StoreBuilder {
    config: Config,
    /// Bytes of each of `ssd.dirs`.
    shares: Vec<Size>,
    problems: Vec<Problem>,
}

impl Store {
    /// Configure and open a store; the defaults are those of [`Config`].
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let store = pagelith::Store::builder().dram("8MiB").ssd(dir.path(), "64MiB").open()?;
    /// store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }
}

impl From<Config> for StoreBuilder {
    /// A builder that starts with these settings.
    fn from(config: Config) -> StoreBuilder {
        StoreBuilder { config, ..StoreBuilder::default() }
    }
}

impl StoreBuilder {
    /// Bytes of the DRAM tier: `dram.bytes`.
    pub fn dram(mut self, bytes: impl TryInto<Size, Error: Display>) -> StoreBuilder {
        if let Some(bytes) = self.size("dram.bytes", bytes) {
            self.config.dram.bytes = bytes;
        }
        self
    }

    /// Add a directory to `ssd.dirs`, and its bytes to `ssd.bytes`. Call it once for each drive,
    /// with the same size, since segments are striped evenly.
    pub fn ssd(
        mut self,
        dir: impl Into<PathBuf>,
        bytes: impl TryInto<Size, Error: Display>,
    ) -> StoreBuilder {
        if let Some(bytes) = self.size("ssd.bytes", bytes) {
            let first = *self.shares.first().unwrap_or(&bytes);
            if first != bytes {
                let message =
                    format!("must be the same for each directory, got={bytes} first={first}");
                self.problems.push(Problem { field: "ssd.bytes".to_owned(), message });
            }
            self.shares.push(bytes);
            let all = self.config.ssd.bytes.bytes().saturating_add(bytes.bytes());
            self.config.ssd.bytes = Size::from_bytes(all);
        }
        self.config.ssd.dirs.push(dir.into());
        self
    }

    /// Set any other settings.
    pub fn set(mut self, set: impl FnOnce(&mut Config)) -> StoreBuilder {
        set(&mut self.config);
        self
    }

    /// Check the settings, and open the store or create it: as [`Store::open`].
    ///
    /// # Errors
    /// `Invalid` for wrong settings; the message lists all problems, one a line.
    pub fn open(self) -> Result<Store> {
        let refused = |error: ConfigError| Error::invalid(error.to_string());
        if !self.problems.is_empty() {
            return Err(refused(ConfigError { problems: self.problems }));
        }
        let limits = MachineLimits::of_this_machine()?;
        Store::open(self.config.validate(&limits).map_err(refused)?)
    }

    fn size(&mut self, field: &str, size: impl TryInto<Size, Error: Display>) -> Option<Size> {
        let problem =
            |error: &dyn Display| Problem { field: field.to_owned(), message: error.to_string() };
        size.try_into().map_err(|error| self.problems.push(problem(&error))).ok()
    }
}
