//! Why bytes were refused.

use thiserror::Error;

/// Why bytes are not the expected structure. The caller adds the place where it read them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Nothing was written at this place: the magic, and everything before it, is zero.
    #[error("no {structure} found")]
    Empty {
        /// The expected structure.
        structure: &'static str,
    },
    /// The magic is that of no or another structure.
    #[error("not a {structure}: wrong magic")]
    Magic {
        /// The expected structure.
        structure: &'static str,
    },
    /// The bytes end too early.
    #[error("{structure} is cut short need={need} have={have}")]
    Short {
        /// The expected structure.
        structure: &'static str,
        /// Bytes required.
        need: u64,
        /// Bytes available.
        have: u64,
    },
    /// The structure's own checksum does not match.
    #[error("checksum of {structure} does not match")]
    Checksum {
        /// Which structure.
        structure: &'static str,
    },
    /// The structure has a format version that this build does not read.
    #[error("{structure} has a newer format version={found} newest_known={known}")]
    Version {
        /// Which structure.
        structure: &'static str,
        /// The version found.
        found: u16,
        /// The newest version that this build reads.
        known: u16,
    },
    /// The structure is intact but names another store, place or incarnation than the one it was
    /// read from.
    #[error(
        "identity of {structure} does not match field={field} found={found} expected={expected}"
    )]
    Identity {
        /// Which structure.
        structure: &'static str,
        /// The field that differs.
        field: &'static str,
        /// Value in the structure.
        found: String,
        /// Value required at this place.
        expected: String,
    },
    /// The structure is intact but contradicts itself or a rule of the format.
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

    /// Compare an identity field; [`FormatError::Identity`] if it differs.
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
