//! The actions, warnings and result of a repair.

use std::path::Path;

use pagelith_layouts::ids::SegmentId;
use serde::Serialize;

use super::super::finding::Finding;
use super::super::report::VerifyReport;

/// Warning if `--repair=keep` cannot keep promise 3.
pub(super) const MAY_RETURN: &str = "objects that were removed or cleared may return";

/// One repair action.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Repair {
    /// The action, in lower case.
    pub(super) action: &'static str,
    /// The reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) segment: Option<u32>,
    /// Dropped objects, as far as they could be counted.
    pub(super) objects: u64,
    /// Their keys, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) keys: Vec<String>,
    pub(super) file: String,
}

impl Repair {
    pub(super) fn new(action: &'static str, cause: impl std::fmt::Display, file: &Path) -> Repair {
        let (cause, file) = (cause.to_string(), file.display().to_string());
        Repair { action, cause, segment: None, objects: 0, keys: Vec::new(), file }
    }

    pub(super) fn of(mut self, segment: SegmentId) -> Repair {
        self.segment = Some(segment.0);
        self
    }
}

impl std::fmt::Display for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "repaired: {}", self.action)?;
        if !self.cause.is_empty() {
            write!(f, " ({})", self.cause)?;
        }
        if let Some(segment) = self.segment {
            write!(f, " segment={segment}")?;
        }
        write!(f, " objects={} file={}", self.objects, self.file)?;
        self.keys.iter().try_for_each(|key| write!(f, "\n  dropped key={key}"))
    }
}

/// Findings, actions and result of a repair. The order of the fields is the order of the JSON keys.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Findings before the repair.
    pub(super) damage: Vec<Finding>,
    pub(super) repairs: Vec<Repair>,
    /// Objects dropped, as far as they could be counted.
    pub(super) dropped_objects: u64,
    pub(super) warnings: Vec<String>,
    /// The store after the repair.
    #[serde(flatten)]
    pub(super) after: VerifyReport,
}

impl Report {
    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
