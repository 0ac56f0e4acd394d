//! Why a description of pages was refused.

use std::fmt;

use thiserror::Error;

use super::layout::Layout;
use crate::key::NameError;

/// One thing that is wrong with a model or a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, as `draft.attention.kv_heads`.
    pub field: String,
    /// What it is.
    pub value: String,
    /// What it must be.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} value={}", self.field, self.rule, self.value)
    }
}

/// Problems are collected, so that a caller hears of all of them at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Note a problem unless `ok`.
    pub(super) fn demand(&mut self, ok: bool, field: &str, value: impl fmt::Display, rule: &str) {
        if !ok {
            self.0.push(Problem { field: field.into(), value: value.to_string(), rule: rule.into() });
        }
    }

    /// The error that they are, if there are any.
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

/// Why there is no geometry, no list of chunks, or no plan of reads.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// The model or the placement contradicts itself or the other: every problem found.
    #[error("{0}")]
    Description(Problems),
    /// No layout has this name.
    #[error("{}", unknown_layout(name, *near))]
    UnknownLayout {
        /// The name given.
        name: String,
        /// The layout whose name is spelled much the same.
        near: Option<Layout>,
    },
    /// No preset has this name.
    #[error("there is no such model preset, known are {known} preset={name:?}")]
    UnknownPreset {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The geometry has no such pool.
    #[error("the model has no such pool pool={pool}")]
    UnknownPool {
        /// The pool asked for.
        pool: String,
    },
    /// A page that the pool does not have.
    #[error("page must be below the pool's pages pool={pool} page={page} pages={pages}")]
    PageOutOfRange {
        /// The pool.
        pool: String,
        /// The page asked for.
        page: u64,
        /// How many there are.
        pages: u64,
    },
    /// A slot inside a page instead of at its start.
    #[error("slot must be a multiple of the slots of a page pool={pool} slot={slot} slots_per_page={slots}")]
    SlotInsidePage {
        /// The pool.
        pool: String,
        /// The slot given.
        slot: u64,
        /// Slots of a page.
        slots: u64,
    },
    /// A component that the pool does not have.
    #[error(
        "component must be below the pool's components pool={pool} component={component} components={components}"
    )]
    ComponentOutOfRange {
        /// The pool.
        pool: String,
        /// The component asked for.
        component: usize,
        /// How many there are.
        components: usize,
    },
    /// Sizes that no machine has: their product does not fit 64 bits.
    #[error("size does not fit 64 bits pool={pool} what={what}")]
    TooLarge {
        /// The pool.
        pool: String,
        /// Which size.
        what: &'static str,
    },
    /// A plan of reads that would not fit memory.
    #[error("too many {what} to list, at most {max} are pool={pool}")]
    TooMany {
        /// The pool.
        pool: String,
        /// Of what.
        what: &'static str,
        /// How many may be.
        max: u64,
    },
    /// A caller's list of pointers holds another number of bytes than the component has.
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
        /// The sum of the list, at most `u64::MAX`.
        given: u64,
    },
    /// What the reader needs is in no object of the writer's.
    #[error(
        "the writer's objects do not hold the reader's component: {rule} pool={pool} component={component} need_bytes={need} found_bytes={found}"
    )]
    NotHeld {
        /// The pool.
        pool: String,
        /// The reader's component.
        component: String,
        /// Why.
        rule: &'static str,
        /// The component's bytes.
        need: u64,
        /// Bytes of it that the writer's objects hold.
        found: u64,
    },
    /// A pool's name is not one that a key can have.
    #[error(transparent)]
    Name(#[from] NameError),
}

fn unknown_layout(name: &str, near: Option<Layout>) -> String {
    let known = Layout::ALL.map(Layout::name).join(", ");
    match near {
        Some(near) => format!("there is no such host layout, did you mean {near}? layout={name:?}"),
        None => format!("there is no such host layout, known are {known} layout={name:?}"),
    }
}
