//! Gets into memory of a device, and puts out of it, over any store: an embedded one, or the client
//! of a store process. Bytes are copied through memory of this process, where they are verified.

pub mod bound;
pub mod call;
pub mod get;
pub mod pieces;
pub mod put;
pub mod store;
