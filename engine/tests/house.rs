//! The house rules that a compiler does not check: which crate may name which, how long a file may be, where
//! `unsafe` and the system may be, and that the documents say what the code says. Each check is a function of
//! texts, so that a planted violation shows it at work beside the check of the repository itself.

#![expect(clippy::disallowed_methods, reason = "reads the repository's own files; nothing here ships")]

#[path = "house/code.rs"]
mod code;
#[path = "house/docs.rs"]
mod docs;
#[path = "house/layers.rs"]
mod layers;
#[path = "house/rendered.rs"]
mod rendered;
#[path = "house/source.rs"]
mod source;
