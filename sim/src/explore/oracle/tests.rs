//! What the oracle allows.
