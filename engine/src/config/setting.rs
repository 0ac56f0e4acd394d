//! Reads each type of setting from a tree, and presents it to the rules.

use std::path::{Path, PathBuf};

use super::limits::{self, NamespaceLimits};
use super::node::Node;
use super::peer::{self, PeerConfig};
use super::rule::{DIRS_MAX, Value};
use super::size::{Size, SizeError};

/// A type of setting.
pub(super) trait Setting: Sized {
    /// Read a node; the error adds details to the rule's own sentence (it may be empty).
    fn read(node: &Node) -> Result<Self, String>;
    fn value(&self) -> Value<'_>;
}

impl Setting for Size {
    fn read(node: &Node) -> Result<Size, String> {
        match node {
            Node::Integer(bytes) => {
                u64::try_from(*bytes).map(Size::from_bytes).map_err(|_| String::new())
            }
            Node::Text(text) => text.parse().map_err(|error: SizeError| error.to_string()),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Size(*self)
    }
}

impl Setting for u64 {
    fn read(node: &Node) -> Result<u64, String> {
        match node {
            Node::Integer(count) => u64::try_from(*count).map_err(|_| String::new()),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Count(*self)
    }
}

impl Setting for u32 {
    fn read(node: &Node) -> Result<u32, String> {
        match node {
            Node::Integer(count) => u32::try_from(*count).map_err(|_| String::new()),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Count(u64::from(*self))
    }
}

impl Setting for f64 {
    fn read(node: &Node) -> Result<f64, String> {
        match node {
            Node::Float(ratio) => Ok(*ratio),
            Node::Integer(ratio) => Ok(*ratio as f64),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Ratio(*self)
    }
}

impl Setting for bool {
    fn read(node: &Node) -> Result<bool, String> {
        match node {
            Node::Bool(flag) => Ok(*flag),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Flag(*self)
    }
}

impl<T: Setting> Setting for Option<T> {
    fn read(node: &Node) -> Result<Option<T>, String> {
        match node {
            Node::Null => Ok(None),
            node => T::read(node).map(Some),
        }
    }

    fn value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Unset, T::value)
    }
}

impl Setting for Vec<PathBuf> {
    fn read(node: &Node) -> Result<Vec<PathBuf>, String> {
        let Node::List(entries) = node else { return Err(String::new()) };
        let mut dirs = Vec::with_capacity(entries.len());
        let mut faults = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            match entry {
                Node::Text(text) => dirs.push(Path::new(text).to_owned()),
                other if faults.len() < DIRS_MAX => {
                    faults.push(format!("entry {number} is {other}"))
                }
                _ => {}
            }
        }
        if faults.is_empty() { Ok(dirs) } else { Err(faults.join(", ")) }
    }

    fn value(&self) -> Value<'_> {
        Value::Dirs(self)
    }
}

impl Setting for Vec<PeerConfig> {
    fn read(node: &Node) -> Result<Vec<PeerConfig>, String> {
        peer::read(node)
    }

    fn value(&self) -> Value<'_> {
        Value::Peers(self)
    }
}

impl Setting for Vec<NamespaceLimits> {
    fn read(node: &Node) -> Result<Vec<NamespaceLimits>, String> {
        limits::read(node)
    }

    fn value(&self) -> Value<'_> {
        Value::Limits(self)
    }
}

impl Setting for String {
    fn read(node: &Node) -> Result<String, String> {
        match node {
            Node::Text(text) => Ok(text.clone()),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::Text(self)
    }
}

impl Setting for PathBuf {
    fn read(node: &Node) -> Result<PathBuf, String> {
        match node {
            Node::Text(text) => Ok(PathBuf::from(text)),
            _ => Err(String::new()),
        }
    }

    fn value(&self) -> Value<'_> {
        Value::File(self)
    }
}

macro_rules! setting_of_choice {
    ($($name:ident),+) => {$(
        impl Setting for super::choice::$name {
            fn read(node: &Node) -> Result<Self, String> {
                match node {
                    Node::Text(text) => Self::of_name(text).ok_or_else(String::new),
                    _ => Err(String::new()),
                }
            }

            fn value(&self) -> Value<'_> {
                Value::Choice(self.name())
            }
        }
    )+};
}

setting_of_choice!(DramPin, DramPolicy, Promote, SsdAdmissionRule, SsdPolicy, SsdIo);
