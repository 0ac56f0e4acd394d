//! The findings of a verification.

use std::fmt;

use pagelith_layouts::ids::SegmentId;
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Bytes that were durable have changed.
    Wrong,
    /// A write that no sync covered is incomplete, as after a crash.
    TornTail,
    /// No damage; the next open handles it.
    Note,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The cause, in lower case.
    pub(crate) cause: String,
    /// The segment, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) segment: Option<u32>,
    /// Byte offset: in the segment if there is one, else in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u64>,
    /// Byte offset of the damaged payload block; `offset` is then that of its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block_offset: Option<u64>,
    /// The affected object, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    pub(crate) file: String,
}

impl Finding {
    /// A finding about a file.
    pub(crate) fn new(
        severity: Severity,
        cause: impl fmt::Display,
        file: impl Into<String>,
    ) -> Finding {
        let (cause, file) = (cause.to_string(), file.into());
        Finding {
            severity,
            cause,
            segment: None,
            offset: None,
            block_offset: None,
            key: None,
            file,
        }
    }

    /// Set the offset in the file, or in the segment.
    pub(crate) fn at(mut self, offset: u64) -> Finding {
        self.offset = Some(offset);
        self
    }

    /// Set the segment.
    pub(crate) fn within(mut self, segment: SegmentId) -> Finding {
        self.segment = Some(segment.0);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Wrong => "wrong",
            Severity::TornTail => "torn tail",
            Severity::Note => "note",
        };
        write!(f, "{severity}: {}", self.cause)?;
        if let Some(segment) = self.segment {
            write!(f, " segment={segment}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " offset={offset}")?;
        }
        if let Some(block) = self.block_offset {
            write!(f, " block_offset={block}")?;
        }
        if let Some(key) = &self.key {
            write!(f, " key={key}")?;
        }
        write!(f, " file={}", self.file)
    }
}
