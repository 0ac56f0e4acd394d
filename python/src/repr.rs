//! How objects show themselves in Python.

/// True or false, as Python spells it.
pub fn truth(is: bool) -> &'static str {
    if is { "True" } else { "False" }
}
