"""Takes the place of an installed Mooncake if this directory is on the module path
(docs/mooncake-api.md)."""
