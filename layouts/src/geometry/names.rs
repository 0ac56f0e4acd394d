//! Component names. A pool whose client key has no component name has a single component [`DATA`].

/// K rows, and MLA's compressed rows.
pub const K: &str = "k";
/// V rows.
pub const V: &str = "v";
/// K and V of a head group in one object (`page_unified`).
pub const KV: &str = "kv";
/// Recurrent state of a linear-attention model; its convolution states are `conv_0`, `conv_1`,
/// ...
pub const TEMPORAL: &str = "temporal";
/// The only component of an indexer, an MLA-class sliding window or a row pool.
pub const DATA: &str = "data";
