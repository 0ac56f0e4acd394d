"""The settings in the JSON of `--hicache-storage-backend-extra-config`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..settings import PoolSettings, of_type

# Keys that SGLang reads itself but leaves in the dictionary.
_SGLANG_KEYS = ("backend_name", "module_path", "class_name", "allocator")


@dataclass(frozen=True)
class Settings(PoolSettings):
    """The keys of this backend."""

    # Zero-copy reads and writes; SGLang's key, so any true value is accepted.
    interface_v1: Any = field(default=0)
    # Return the events of pages by `take_events`.
    enable_kv_events: bool = of_type(bool, "true or false", False)
    # Publish the events instead, configured as SGLang's `--kv-events-config` configures its own.
    kv_events_config: dict[str, Any] | None = of_type(dict, "a dictionary, as --kv-events-config is", None)

    @staticmethod
    def of(extra: Mapping[str, Any] | None) -> "Settings":
        given = {} if extra is None else extra
        if isinstance(given, Mapping):
            given = {name: value for name, value in given.items() if name not in _SGLANG_KEYS}
        return Settings.read("--hicache-storage-backend-extra-config", given)
