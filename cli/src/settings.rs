//! The configuration of a store that a command opens: the command's defaults < file < environment <
//! flags.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand};
use pagelith::config::{
    Config, ConfigError, ConfigFormat, DramPolicy, ENV_PREFIX, MachineLimits, Size, SsdIo,
    SsdPolicy, ValidConfig,
};
use pagelith::io::regular_file::read_text;
use pagelith::io::shm::SharedRegion;

use crate::exit::RunStatus;
use crate::output::{log, out};

/// Maximum length of a configuration file; the configuration checks a bound too.
const CONFIG_BYTES_MAX: u64 = 2 << 20;

/// Flags that configure the store. A setting without a flag comes from the environment
/// (`PAGELITH_DRAM__BYTES=...`), the file, or the command's defaults.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreFlags {
    /// Directory of the store, kept afterwards; repeat for each further drive
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Bytes of the DRAM tier, such as 256MiB; 0 disables it
    #[arg(long, value_name = "SIZE")]
    dram: Option<Size>,
    /// Maximum bytes of all files of the store together; 0 disables the SSD tier
    #[arg(long, value_name = "SIZE")]
    ssd: Option<Size>,
    /// Eviction policy of the DRAM tier
    #[arg(long, value_name = "NAME", value_parser = choice(DramPolicy::NAMES, DramPolicy::of_name))]
    policy: Option<DramPolicy>,
    /// Reclaim policy for segments of the SSD log
    #[arg(long, value_name = "NAME", value_parser = choice(SsdPolicy::NAMES, SsdPolicy::of_name))]
    ssd_policy: Option<SsdPolicy>,
    /// I/O backend of the SSD tier
    #[arg(long, value_name = "BACKEND", value_parser = io_backend())]
    io: Option<SsdIo>,
    /// Bytes of aligned staging memory, for reads that cannot go directly into their destination
    #[arg(long, value_name = "SIZE")]
    staging: Option<Size>,
    /// Configuration file, `.toml` or `.json`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Check or show a configuration: file, environment (`PAGELITH_DRAM__BYTES=...`) and flags; later
/// ones win
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith config check --config /etc/pagelith/store.toml")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Subcommand, Debug)]
enum ConfigAction {
    /// Report all problems of the configuration on this machine, and open nothing
    Check(StoreFlags),
    /// Print every setting with its value, as JSON for `--config`
    Show(StoreFlags),
}

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<RunStatus> {
    let (ConfigAction::Check(flags) | ConfigAction::Show(flags)) = &args.action;
    match flags.validate(StoreDefaults::of_the_store(), None, &|_| {})? {
        Ok(valid) if matches!(args.action, ConfigAction::Show(_)) => {
            out!("{}", valid.config().to_json_string())?;
            Ok(RunStatus::Clean)
        }
        Ok(valid) => {
            for dir in valid.dirs_in_memory() {
                out!(
                    "ssd.dirs: the files of this directory are memory, and are lost with it dir={}",
                    dir.display()
                )?;
            }
            out!("the configuration is valid memory={}", valid.memory_plan())?;
            Ok(RunStatus::Clean)
        }
        Err(problems) => {
            out!("{problems}")?;
            Ok(RunStatus::Problems)
        }
    }
}

/// A command's defaults for settings without file, environment and flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDefaults {
    pub(crate) dram: Size,
    pub(crate) ssd: Size,
    /// If set, the arena is memory that other processes can map. That needs a system that lets this
    /// process share memory of the arena's length and of this
    /// length.
    pub(crate) shared: Option<Size>,
}

impl StoreDefaults {
    /// The defaults of [`Config`] itself, which also apply to embedded stores.
    pub(crate) fn of_the_store() -> StoreDefaults {
        let config = Config::default();
        StoreDefaults { dram: config.dram.bytes, ssd: config.ssd.bytes, shared: None }
    }

    /// Add the defaults to the help of a command with [`StoreFlags`].
    pub(crate) fn in_help(self, command: Command) -> Command {
        let with = |default: String| {
            move |arg: Arg| {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                arg.help(format!("{help} [default: {default}]"))
            }
        };
        let dirs = match self.ssd {
            Size::ZERO => "none; --ssd is needed too".to_owned(),
            _ => "a new one under the system's temporary directory, removed at the end".to_owned(),
        };
        let config = Config::default();
        command
            .mut_arg("dirs", with(dirs))
            .mut_arg("dram", with(self.dram.to_string()))
            .mut_arg("ssd", with(self.ssd.to_string()))
            .mut_arg("policy", with(config.dram.policy.name().to_owned()))
            .mut_arg("ssd_policy", with(config.ssd.policy.name().to_owned()))
            .mut_arg("io", with(config.ssd.io.name().to_owned()))
            .mut_arg("staging", with(config.staging.bytes.to_string()))
    }
}

fn choice<T: Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
    of_name: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| of_name(&name).ok_or("not a known name"))
}

/// The parser of `--io`.
pub(crate) fn io_backend() -> impl TypedValueParser<Value = SsdIo> {
    choice(SsdIo::NAMES, SsdIo::of_name)
}

/// Sets single settings; the last layer of a configuration.
pub(crate) type ConfigOverride<'a> = &'a dyn Fn(&mut Config);

impl StoreFlags {
    /// Only these flags.
    pub(crate) fn of(dirs: Vec<PathBuf>, io: Option<SsdIo>) -> StoreFlags {
        StoreFlags { dirs, io, ..StoreFlags::default() }
    }

    /// The configuration, or an error with all of its problems.
    pub(crate) fn resolve(
        &self,
        defaults: StoreDefaults,
        fresh_dir: Option<&Path>,
        tune: ConfigOverride<'_>,
    ) -> anyhow::Result<ValidConfig> {
        self.validate(defaults, fresh_dir, tune)?.context("the configuration is invalid")
    }

    /// The configuration, checked against this machine; the same for every command. `fresh_dir` is
    /// the directory for an SSD tier that only the command's defaults or `--ssd` request; it is not
    /// created here. `tune` sets the settings that the command itself requires.
    fn validate(
        &self,
        defaults: StoreDefaults,
        fresh_dir: Option<&Path>,
        tune: ConfigOverride<'_>,
    ) -> anyhow::Result<Result<ValidConfig, ConfigError>> {
        let file = self.config.as_deref().map(read_file).transpose()?;
        let given = |section: &str, name: &str| {
            file.as_ref().is_some_and(|(format, text)| names_setting(*format, text, section, name))
                || std::env::var_os(env_name(section, name)).is_some()
        };
        let mut builder = Config::builder().env(std::env::vars_os());
        if let Some((format, text)) = &file {
            builder = builder.file(*format, text);
        }
        let builder = builder.set(|config| {
            // A file with only one of the two SSD settings is refused, not completed.
            let ssd_given = given("ssd", "bytes") || given("ssd", "dirs");
            if !given("dram", "bytes") {
                config.dram.bytes = defaults.dram;
            }
            if !ssd_given {
                config.ssd.bytes = defaults.ssd;
            }
            self.apply(config);
            if !given("dram", "shared") {
                let can = |other: Size| can_share(config.dram.bytes.max(other));
                config.dram.shared = defaults.shared.is_some_and(can);
            }
            if config.ssd.bytes > Size::ZERO && config.ssd.dirs.is_empty() && !ssd_given {
                config.ssd.dirs.extend(fresh_dir.map(Path::to_owned));
            }
            tune(config);
        });
        let facts = MachineLimits::of_this_machine()?;
        Ok(builder.validate(&facts).and_then(|valid| valid.check_machine(&facts).map(|()| valid)))
    }

    fn apply(&self, config: &mut Config) {
        fn set<T: Copy>(target: &mut T, flag: Option<T>) {
            *target = flag.unwrap_or(*target);
        }
        set(&mut config.dram.bytes, self.dram);
        set(&mut config.ssd.bytes, self.ssd);
        set(&mut config.dram.policy, self.policy);
        set(&mut config.ssd.policy, self.ssd_policy);
        set(&mut config.ssd.io, self.io);
        set(&mut config.staging.bytes, self.staging);
        if !self.dirs.is_empty() {
            config.ssd.dirs.clone_from(&self.dirs);
        } else if self.ssd == Some(Size::ZERO) {
            // `--ssd 0` disables the whole tier of a file or the environment.
            config.ssd.dirs.clear();
        }
    }
}

fn read_file(path: &Path) -> anyhow::Result<(ConfigFormat, String)> {
    let Some(format) = ConfigFormat::of_path(path) else {
        bail!("a configuration file must end in .toml or .json file={}", path.display());
    };
    let text = read_text(path, CONFIG_BYTES_MAX);
    Ok((
        format,
        text.with_context(|| format!("cannot read the configuration file={}", path.display()))?,
    ))
}

/// Whether this process can share memory of this length with others; logs the reason if not.
fn can_share(length: Size) -> bool {
    let bytes = usize::try_from(length.bytes()).unwrap_or(usize::MAX);
    let made = SharedRegion::new(bytes.max(1));
    if let Err(error) = &made {
        log!(
            "memory cannot be shared with clients of this host, so every hit is sent to them; set dram.shared = false to accept \
             this, or true to make it an error: {error} bytes={length}"
        );
    }
    made.is_ok()
}

fn env_name(section: &str, name: &str) -> String {
    format!("{ENV_PREFIX}{section}__{name}").to_ascii_uppercase()
}

/// Whether a file sets this setting. A file that cannot be parsed sets none; the configuration
/// reports it.
fn names_setting(format: ConfigFormat, text: &str, section: &str, name: &str) -> bool {
    let tree: Option<serde_json::Value> = match format {
        ConfigFormat::Toml => toml::from_str(text).ok(),
        ConfigFormat::Json => serde_json::from_str(text).ok(),
        // The configuration reports a format that this program does not know.
        _ => None,
    };
    tree.and_then(|t| t.get(section)?.get(name).map(|_| ())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_in_a_file_is_found_in_both_formats() {
        for (format, text) in [
            (ConfigFormat::Toml, "[ssd]\nbytes = 0"),
            (ConfigFormat::Json, r#"{"ssd": {"bytes": 0}}"#),
        ] {
            assert!(names_setting(format, text, "ssd", "bytes"));
            assert!(!names_setting(format, text, "dram", "bytes"));
            assert!(!names_setting(format, "not a file", "ssd", "bytes"));
        }
        assert_eq!(env_name("ssd", "bytes"), "PAGELITH_SSD__BYTES");
    }
}
