//! How objects show themselves in Python.

/// True or false, as Python spells it.
pub fn python_bool(is: bool) -> &'static str {
    if is { "True" } else { "False" }
}
