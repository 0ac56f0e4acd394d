//! Why bytes were refused.

use thiserror::Error;

/// Why bytes are not the structure they should be. The caller adds where it read them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Nothing was ever written here: the magic and all before it are zero.
    #[error("nothing here structure={structure}")]
    Empty {
        /// Which structure was looked for.
        structure: &'static str,
    },
    /// Other bytes are here.
    #[error("not a {structure}: wrong magic")]
    Magic {
        /// Which structure was looked for.
        structure: &'static str,
    },
    /// The bytes end too early.
    #[error("{structure} is cut short need={need} have={have}")]
    Short {
        /// Which structure was looked for.
        structure: &'static str,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// The structure's own checksum does not match.
    #[error("checksum of {structure} does not match")]
    Checksum {
        /// Which structure.
        structure: &'static str,
    },
    /// The structure is of a format this build does not read.
    #[error("{structure} has a newer format version={found} newest_known={known}")]
    Version {
        /// Which structure.
        structure: &'static str,
        /// The version found.
        found: u16,
        /// The newest version that this build reads.
        known: u16,
    },
    /// The structure is whole but names another place, store or time than where it was found.
    #[error("{structure} belongs elsewhere field={field} found={found} expected={expected}")]
    Identity {
        /// Which structure.
        structure: &'static str,
        /// The field that differs.
        field: &'static str,
        /// What it says.
        found: String,
        /// What the place demands.
        expected: String,
    },
    /// The structure is whole but contradicts itself or the format's rules.
    #[error("{structure} is malformed field={field} value={value}")]
    Field {
        /// Which structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A payload block's checksum does not match.
    #[error("checksum of payload block {block} does not match")]
    Payload {
        /// The block's number inside its object.
        block: u64,
    },
}

impl FormatError {
    pub(crate) fn field(
        structure: &'static str,
        field: &'static str,
        value: impl std::fmt::Display,
    ) -> FormatError {
        FormatError::Field { structure, field, value: value.to_string() }
    }

    /// An identity field that must be equal.
    pub(crate) fn same<T: PartialEq + std::fmt::Display>(
        structure: &'static str,
        field: &'static str,
        found: T,
        expected: T,
    ) -> Result<(), FormatError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_string(), expected.to_string());
        Err(FormatError::Identity { structure, field, found, expected })
    }
}
