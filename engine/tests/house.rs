//! House rules that the compiler does not check: dependencies between crates, lengths of files,
//! places of `unsafe` and of system calls, and agreement of documents with the code. Each check is
//! a function of texts, so that it can be tested with a planted violation.

#![expect(
    clippy::disallowed_methods,
    reason = "reads the repository's own files; nothing here ships"
)]

#[path = "house/circles.rs"]
mod circles;
#[path = "house/code.rs"]
mod code;
#[path = "house/docs.rs"]
mod docs;
#[path = "house/folders.rs"]
mod folders;
#[path = "house/layers.rs"]
mod layers;
#[path = "house/rendered.rs"]
mod rendered;
#[path = "house/source.rs"]
mod source;
#[path = "house/vocabulary.rs"]
mod vocabulary;
