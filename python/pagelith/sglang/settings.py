"""What the JSON of `--hicache-storage-backend-extra-config` says to this backend."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pagelith

# Keys that SGLang reads itself and leaves in the dictionary.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "allocator")


@dataclass(frozen=True)
class Settings:
    """The keys of this backend, with their types."""

    # Settings of a store in this process, as docs/operations.md has them.
    store: dict[str, Any] | None = None
    # A store process instead: `unix:PATH` or `tcp:HOST:PORT`.
    attach: str | None = None
    # The name by which that process knows this one, and the file with the secret, where it demands one.
    key_name: str | None = None
    key_file: str | None = None
    # Who may share pages, beside the model: docs/sglang.md.
    tenant: str = ""
    revision: str = ""
    # Longest that a write waits for room in a full store, and a read for its bytes.
    put_wait_ms: int = 50
    get_timeout_ms: int = 30000
    # Zero-copy reads and writes; SGLang's name, and its type: anything that is true.
    interface_v1: Any = field(default=0)

    @staticmethod
    def of(extra: Mapping[str, Any] | None) -> "Settings":
        given = {name: value for name, value in (extra or {}).items() if name not in _OF_SGLANG}
        known = {f.name: f for f in fields(Settings)}
        problems = [f"{name!r} is no key of it (there are {', '.join(known)})" for name in given if name not in known]
        problems += [problem for name, value in given.items() for problem in _wrong_type(name, value)]
        settings = Settings(**{name: value for name, value in given.items() if name in known})
        if (settings.store is None) == (settings.attach is None):
            problems.append("it takes 'store' (a store in this process) or 'attach' (a store process), one of the two")
        if (settings.key_name is None) != (settings.key_file is None) or (settings.key_name and not settings.attach):
            problems.append("'key_name' and 'key_file' go together, and with 'attach'")
        if problems:
            raise ValueError("--hicache-storage-backend-extra-config for pagelith: " + "; ".join(problems))
        return settings

    def open(self, rank: str) -> pagelith.Store:
        """The store of this rank, whose directories are its own."""
        if self.attach is not None:
            return pagelith.Store.attach(self.attach, key=self._key())
        store = dict(self.store or {})
        if "ssd" in store:
            dirs = [os.path.join(directory, rank) for directory in store["ssd"].get("dirs", [])]
            for directory in dirs:
                os.makedirs(directory, exist_ok=True)
            store["ssd"] = {**store["ssd"], "dirs": dirs}
        return pagelith.Store(store)

    def _key(self) -> tuple[str, bytes] | None:
        if self.key_name is None or self.key_file is None:
            return None
        with open(self.key_file, "rb") as file:
            return self.key_name, file.read().strip()


_TYPES: dict[str, tuple[type, str]] = {
    "store": (dict, "a dictionary"),
    **dict.fromkeys(("attach", "key_name", "key_file", "tenant", "revision"), (str, "a string")),
    **dict.fromkeys(("put_wait_ms", "get_timeout_ms"), (int, "a whole number, at least 1")),
}


def _wrong_type(name: str, value: Any) -> list[str]:
    kind, words = _TYPES.get(name, (object, ""))
    right = isinstance(value, kind)
    if kind is int:
        right = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if right and name == "store" and not isinstance(value.get("ssd", {}), dict):
        return [f"'store.ssd' is a dictionary, not {value['ssd']!r}"]
    return [] if right else [f"{name!r} is {words}, not {value!r}"]
