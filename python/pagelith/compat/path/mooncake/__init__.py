"""Stands before an installed Mooncake for who put this folder on the module path (docs/mooncake-api.md)."""
