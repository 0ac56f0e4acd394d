//! The range of one setting, as data, so that the check and the sentence that documents it cannot
//! diverge.

use std::collections::HashSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use pagelith_io::verbs::DeviceList;

use super::limits::{self, LIMITS_MAX, NamespaceLimits};
use super::node::{Node, quoted};
use super::peer::{self, PEERS_MAX, PeerConfig};
use super::size::Size;

/// Most directories (drives) of one store.
pub(super) const DIRS_MAX: usize = 64;

/// Longest host name in bytes, as in DNS.
const HOST_NAME_BYTES_MAX: usize = 253;

/// Paths that a shell would expand; a store would create them as spelled.
mod shell {
    pub(super) const REMEDY: &str =
        "only a shell expands that, give the whole path (./ before a name that begins so)";

    pub(super) fn expands(path: &str) -> bool {
        path.starts_with('~') || path.starts_with('$')
    }
}

/// The range of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Size {
        min: Size,
        max: Size,
        grain: SizeConstraint,
    },
    /// As `Size`, or 0.
    SizeOrZero {
        min: Size,
        max: Size,
    },
    Count {
        min: u64,
        max: u64,
    },
    /// `min <= value <= max`.
    Ratio {
        min: f64,
        max: f64,
    },
    /// `0 < value <= max`.
    RatioAboveZero {
        max: f64,
    },
    Flag,
    Choice(&'static [&'static str]),
    Dirs,
    Peers,
    Limits,
    /// A path of a file, which is not inspected here.
    File,
    HostName,
    RdmaDevices,
}

/// Which sizes within the range are allowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum SizeConstraint {
    Any,
    MultipleOf(u64),
    PowerOfTwo,
}

/// A setting's present value, as rules check it.
pub(super) enum Value<'a> {
    Unset,
    Size(Size),
    Count(u64),
    Ratio(f64),
    Flag(bool),
    Choice(&'static str),
    Dirs(&'a [PathBuf]),
    Peers(&'a [PeerConfig]),
    Limits(&'a [NamespaceLimits]),
    File(&'a Path),
    Text(&'a str),
}

impl fmt::Display for Rule {
    /// Completes "must be ...".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Size { min, max, grain } => {
                match grain {
                    SizeConstraint::Any => f.write_str("a size")?,
                    SizeConstraint::MultipleOf(step) => write!(f, "a multiple of {step}")?,
                    SizeConstraint::PowerOfTwo => f.write_str("a power of two")?,
                }
                write!(f, " between {min} and {max}")
            }
            Rule::SizeOrZero { min, max } => write!(f, "0 or a size between {min} and {max}"),
            Rule::Count { min, max } => write!(f, "an integer between {min} and {max}"),
            Rule::Ratio { min, max } => write!(f, "a number between {min} and {max}"),
            Rule::RatioAboveZero { max } => write!(f, "a number above 0 and at most {max}"),
            Rule::Flag => f.write_str("true or false"),
            Rule::Choice(names) => {
                f.write_str("one of ")?;
                for (number, name) in names.iter().enumerate() {
                    write!(f, "{}{name:?}", if number > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Rule::Dirs => write!(f, "a list of at most {DIRS_MAX} different directories"),
            Rule::Peers => write!(
                f,
                "a list of at most {PEERS_MAX} peers, each an address or a table of address, transport, name, weight and preferred"
            ),
            Rule::Limits => write!(
                f,
                "a list of at most {LIMITS_MAX} tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days"
            ),
            Rule::File => f.write_str("the path of a file"),
            Rule::HostName => write!(
                f,
                "1 to {HOST_NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores"
            ),
            Rule::RdmaDevices => f.write_str("one device name, or several separated by commas"),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unset => f.write_str("unset"),
            Value::Size(size) => write!(f, "{size}"),
            Value::Count(count) => write!(f, "{count}"),
            Value::Ratio(ratio) => write!(f, "{ratio}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Choice(name) => write!(f, "{name:?}"),
            Value::Dirs(dirs) => write!(f, "{dirs:?}"),
            Value::Peers(peers) => {
                let peers: Vec<String> = peers.iter().map(PeerConfig::to_string).collect();
                write!(f, "[{}]", peers.join(", "))
            }
            Value::Limits(limits) => {
                let limits: Vec<String> = limits.iter().map(NamespaceLimits::to_string).collect();
                write!(f, "[{}]", limits.join(", "))
            }
            Value::File(path) => write!(f, "{path:?}"),
            Value::Text(text) => f.write_str(&quoted(text)),
        }
    }
}

impl Rule {
    /// Whether `value` is within the rule; if not, the message.
    pub(super) fn check(&self, value: &Value<'_>) -> Result<(), String> {
        let within = match (self, value) {
            (Rule::Size { min, max, grain }, Value::Size(size)) => {
                (*min..=*max).contains(size) && grain.holds(size.bytes())
            }
            (Rule::SizeOrZero { min, max }, Value::Size(size)) => {
                *size == Size::ZERO || (*min..=*max).contains(size)
            }
            (Rule::Count { min, max }, Value::Count(count)) => (*min..=*max).contains(count),
            (Rule::Ratio { min, max }, Value::Ratio(ratio)) => (*min..=*max).contains(ratio),
            (Rule::RatioAboveZero { max }, Value::Ratio(ratio)) => *ratio > 0.0 && *ratio <= *max,
            (Rule::Dirs, Value::Dirs(dirs)) => return self.check_dirs(dirs),
            (Rule::Peers, Value::Peers(peers)) => return self.unless(&peer::faults(peers)),
            (Rule::Limits, Value::Limits(limits)) => return self.unless(&limits::faults(limits)),
            (Rule::File, Value::File(path)) => return self.check_file(path),
            (Rule::HostName, Value::Text(name)) => is_host_name(name),
            (Rule::RdmaDevices, Value::Text(list)) => {
                return DeviceList::parse(list)
                    .map(drop)
                    .map_err(|error| format!("must be {self}: {error}"));
            }
            // Flags and choices are valid by their type, and an optional setting may be unset.
            _ => true,
        };
        if within { Ok(()) } else { Err(format!("must be {self}, got={value}")) }
    }

    fn check_dirs(&self, dirs: &[PathBuf]) -> Result<(), String> {
        if dirs.len() > DIRS_MAX {
            return Err(format!("must be {self}, got={} directories", dirs.len()));
        }
        let mut faults = Vec::new();
        let mut seen = HashSet::new();
        for (number, dir) in dirs.iter().enumerate() {
            match dir.to_str() {
                None => faults.push(format!("entry {number} is not UTF-8")),
                Some("") => faults.push(format!("entry {number} is empty")),
                Some(text) if text.contains('\0') => {
                    faults.push(format!("entry {number} contains a NUL"))
                }
                Some(text) if shell::expands(text) => {
                    faults.push(format!("entry {number} is {}: {}", quoted(text), shell::REMEDY));
                }
                // Compared by component: "/a/" and "/a/./" equal "/a", and "./a" equals "a". Links
                // and ".." are not resolved (no file is touched); the lock on the data files
                // detects those.
                Some(text) if !seen.insert(without_dots(dir)) => {
                    faults.push(format!("entry {number} repeats {}", quoted(text)));
                }
                Some(_) => {}
            }
        }
        self.unless(&faults)
    }

    fn check_file(&self, path: &Path) -> Result<(), String> {
        match path.to_str() {
            Some(text) if shell::expands(text) => {
                Err(format!("must be {self}, got={}: {}", quoted(text), shell::REMEDY))
            }
            Some(text) if !text.is_empty() => Ok(()),
            _ => Err(format!("must be {self}, got={path:?}")),
        }
    }

    fn unless(&self, faults: &[String]) -> Result<(), String> {
        if faults.is_empty() {
            Ok(())
        } else {
            Err(format!("must be {self}, but {}", faults.join(", ")))
        }
    }

    /// The value of an environment variable's text. Text that does not match the setting's type
    /// stays text, and is refused like any other string.
    pub(super) fn node_of_text(&self, text: &str) -> Node {
        let as_text = || Node::Text(text.to_owned());
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Rule::Flag => text.parse().map_or_else(|_| as_text(), Node::Bool),
            Rule::Count { .. } if digits(text) => {
                text.parse().map_or_else(|_| as_text(), Node::Integer)
            }
            Rule::Ratio { .. } | Rule::RatioAboveZero { .. }
                if text.split_once('.').map_or(digits(text), |(a, b)| digits(a) && digits(b)) =>
            {
                text.parse().map_or_else(|_| as_text(), Node::Float)
            }
            Rule::Dirs | Rule::Peers | Rule::Limits if text.is_empty() => as_text(),
            Rule::Dirs | Rule::Peers | Rule::Limits if text.starts_with('[') => {
                serde_json::from_str(text).unwrap_or_else(|_| as_text())
            }
            Rule::Dirs | Rule::Peers => {
                Node::List(text.split(',').map(|entry| Node::Text(entry.to_owned())).collect())
            }
            _ => as_text(),
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=HOST_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(known)
}

fn without_dots(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

impl SizeConstraint {
    fn holds(self, bytes: u64) -> bool {
        match self {
            SizeConstraint::Any => true,
            SizeConstraint::MultipleOf(step) => bytes.is_multiple_of(step),
            SizeConstraint::PowerOfTwo => bytes.is_power_of_two(),
        }
    }
}
