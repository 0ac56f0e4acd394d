"""What `setup` of Mooncake's client was given, as settings of a store: types, sizes, and how much of a disk where nobody says."""

import os
import re
import shutil
from decimal import Decimal
from typing import Any

import pagelith

_PAGE = 4096
_DRAM_MIN = 16 << 20
_SEGMENT_MAX = 256 << 20
# What Mooncake takes at most where nobody says otherwise.
_SSD_MAX = 2 << 40
# Ranks of one host share its disk, and none knows how many they are: each takes an eighth of nine tenths.
_RANKS = 8

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False, "": False}


def size_of(name: str, value: Any) -> int:
    """Bytes: a number, or text such as `4gb`, of which Mooncake's engines mean powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{name} must be a number of bytes, or text such as '4gb', got={value!r}")
    return int(Decimal(found[1]) * (1 << _UNITS[found[2].lower()]))


def flag_of(name: str, value: Any) -> bool:
    """True or false, or text that says so."""
    known = _FLAGS.get(str(value).strip().lower()) if isinstance(value, bool | int | str) else None
    if known is None:
        raise ValueError(f"{name} must be true or false, got={value!r}")
    return known


def text_of(name: str, value: Any) -> str:
    """Text; what is not given is empty."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be text, got={value!r}")
    return value or ""


def path_of(name: str, value: Any, prefix: str = "") -> str:
    """The same, or a path, which is that text behind `prefix`."""
    return text_of(name, prefix + os.fsdecode(value) if isinstance(value, os.PathLike) else value)


def store_settings(dram: int, offload: str | None) -> dict[str, Any]:
    """Settings of a store in this process: with `offload` on SSD too, in that directory or the one that the environment names."""
    settings: dict[str, Any] = {}
    dram = max(dram, _DRAM_MIN)
    if offload is not None:
        directory = offload or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/data/file_storage")
        limit = os.environ.get("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        size = size_of("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", limit) if limit else _default_size(directory)
        settings["ssd"] = {"dirs": [directory], "bytes": size // _PAGE * _PAGE}
        # Memory is where writes wait for the drive, so it has at least one segment, which is no more than this.
        dram = max(dram, min(size // 64, _SEGMENT_MAX))
    settings["dram"] = {"bytes": -(-dram // _PAGE) * _PAGE}
    return settings


def _default_size(directory: str) -> int:
    """That of the store which is there; of a new one a share of the disk that does not hang on who came before."""
    made = pagelith.Store.bytes_in(directory)
    if made is not None:
        return made
    nearest = os.path.abspath(directory)
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    disk = shutil.disk_usage(nearest)
    return min(_SSD_MAX, disk.total * 9 // 10 // _RANKS, disk.free * 9 // 10)
