//! Errors of page geometry.

use std::fmt;

use thiserror::Error;

use super::layout::Layout;
use crate::key::NameError;

/// One problem of a model or a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, as `draft.attention.kv_heads`.
    pub field: String,
    /// Its value.
    pub value: String,
    /// The rule that the value breaks.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} value={}", self.field, self.rule, self.value)
    }
}

/// All problems of a model and a placement, reported together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Add a problem unless `ok`.
    pub(super) fn demand(&mut self, ok: bool, field: &str, value: impl fmt::Display, rule: &str) {
        if !ok {
            self.0.push(Problem {
                field: field.into(),
                value: value.to_string(),
                rule: rule.into(),
            });
        }
    }

    /// An error unless the list is empty.
    pub(super) fn into_result(self) -> Result<(), GeometryError> {
        if self.0.is_empty() { Ok(()) } else { Err(GeometryError::Description(self)) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// An error of geometry, extents or resharding.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// The model or the placement is invalid, or the two do not match: every problem found.
    #[error("{0}")]
    Description(Problems),
    /// Unknown layout.
    #[error("{}", unknown_layout(name, *near))]
    UnknownLayout {
        /// The given name.
        name: String,
        /// The layout with the most similar name.
        near: Option<Layout>,
    },
    /// Unknown preset.
    #[error("unknown model preset, known are {known} preset={name:?}")]
    UnknownPreset {
        /// The given name.
        name: String,
        /// All preset names.
        known: String,
    },
    /// The geometry has no such pool.
    #[error("the model has no such pool pool={pool}")]
    UnknownPool {
        /// The requested pool.
        pool: String,
    },
    /// Page number out of range.
    #[error("page must be below the pool's pages pool={pool} page={page} pages={pages}")]
    PageOutOfRange {
        /// The pool.
        pool: String,
        /// The requested page.
        page: u64,
        /// Number of pages.
        pages: u64,
    },
    /// The slot is not the first of a page.
    #[error(
        "slot must be a multiple of the slots of a page pool={pool} slot={slot} slots_per_page={slots}"
    )]
    SlotInsidePage {
        /// The pool.
        pool: String,
        /// The given slot.
        slot: u64,
        /// Slots per page.
        slots: u64,
    },
    /// Component number out of range.
    #[error(
        "component must be below the pool's components pool={pool} component={component} components={components}"
    )]
    ComponentOutOfRange {
        /// The pool.
        pool: String,
        /// The requested component.
        component: usize,
        /// Number of components.
        components: usize,
    },
    /// A size does not fit 64 bits.
    #[error("size does not fit 64 bits pool={pool} what={what}")]
    TooLarge {
        /// The pool.
        pool: String,
        /// Name of the size.
        what: &'static str,
    },
    /// A plan of reads exceeds a limit.
    #[error("too many {what}, at most {max} are allowed pool={pool}")]
    TooMany {
        /// The pool.
        pool: String,
        /// The counted thing.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// The lengths in a caller's pointer list do not add up to the component's bytes.
    #[error(
        "lengths of the list must add up to the component's bytes pool={pool} component={component} list_bytes={given} component_bytes={expected}"
    )]
    WrongLength {
        /// The pool.
        pool: String,
        /// The component.
        component: String,
        /// The component's bytes.
        expected: u64,
        /// The sum of the list, saturated at `u64::MAX`.
        given: u64,
    },
    /// The writer's objects lack bytes that the reader needs.
    #[error(
        "the writer's objects do not hold the reader's component: {rule} pool={pool} component={component} need_bytes={need} found_bytes={found}"
    )]
    NotHeld {
        /// The pool.
        pool: String,
        /// The reader's component.
        component: String,
        /// The reason.
        rule: &'static str,
        /// The component's bytes.
        need: u64,
        /// Bytes of the component in the writer's objects.
        found: u64,
    },
    /// A pool has a name that is invalid in a key.
    #[error(transparent)]
    Name(#[from] NameError),
}

fn unknown_layout(name: &str, near: Option<Layout>) -> String {
    let known = Layout::ALL.map(Layout::name).join(", ");
    match near {
        Some(near) => format!("unknown host layout, did you mean {near}? layout={name:?}"),
        None => format!("unknown host layout, known are {known} layout={name:?}"),
    }
}
