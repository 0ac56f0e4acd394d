//! A peer's store, seen from here: what is asked of it over a link.

mod call;
mod caller;
mod verify;

#[cfg(test)]
mod tests;
