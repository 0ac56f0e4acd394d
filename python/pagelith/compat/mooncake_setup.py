"""The arguments of Mooncake's `setup` as settings of a store: types, sizes, and the default share
of a disk."""

import os
import re
import shutil
from decimal import Decimal
from typing import Any

import pagelith

_PAGE = 4096
_DRAM_MIN = 16 << 20
_SEGMENT_MAX = 256 << 20
# Mooncake's default upper limit.
_SSD_MAX = 2 << 40
# The ranks of one host share its disk, and none knows their number: each takes an eighth of 90 % of
# it.
_RANKS = 8

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False, "": False}


def size_of(name: str, value: Any) -> int:
    """A number of bytes: an integer, or text such as `4gb`, with powers of 1024 as Mooncake's
    engines mean it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{name} must be a number of bytes, or text such as '4gb', got={value!r}")
    return int(Decimal(found[1]) * (1 << _UNITS[found[2].lower()]))


def flag_of(name: str, value: Any) -> bool:
    """A boolean, also as text."""
    known = _FLAGS.get(str(value).strip().lower()) if isinstance(value, bool | int | str) else None
    if known is None:
        raise ValueError(f"{name} must be true or false, got={value!r}")
    return known


def text_of(name: str, value: Any) -> str:
    """A string; None is the empty string."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be text, got={value!r}")
    return value or ""


def path_of(name: str, value: Any, prefix: str = "") -> str:
    """A string or a path; a path is prefixed with `prefix`."""
    return text_of(name, prefix + os.fsdecode(value) if isinstance(value, os.PathLike) else value)


def store_settings(dram: int, offload: str | None) -> dict[str, Any]:
    """Settings of an embedded store; with `offload`, on SSD too, in that directory or the one that
    the environment names."""
    settings: dict[str, Any] = {}
    dram = max(dram, _DRAM_MIN)
    if offload is not None:
        directory = offload or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/data/file_storage")
        limit = os.environ.get("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        size = size_of("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", limit) if limit else _default_size(directory)
        settings["ssd"] = {"dirs": [directory], "bytes": size // _PAGE * _PAGE}
        # DRAM buffers writes to the drive, so it must hold at least one segment, which is at most
        # this long.
        dram = max(dram, min(size // 64, _SEGMENT_MAX))
    settings["dram"] = {"bytes": -(-dram // _PAGE) * _PAGE}
    return settings


def _default_size(directory: str) -> int:
    """The capacity of an existing store; for a new one a share of the disk that is independent of
    other ranks' stores."""
    existing = pagelith.Store.bytes_in(directory)
    if existing is not None:
        return existing
    parent = os.path.abspath(directory)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    disk = shutil.disk_usage(parent)
    return min(_SSD_MAX, disk.total * 9 // 10 // _RANKS, disk.free * 9 // 10)
