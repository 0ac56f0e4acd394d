"""The identity of a model's weights: the commit that they were downloaded from, or a digest of the
files."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

# Formats that an engine reads from the model's own directory. Other formats (a stream, a peer, a
# cache) are not identified here.
_LOCAL_FORMATS = {
    "auto", "hf", "safetensors", "pt", "npcache", "mistral", "gguf", "bitsandbytes", "fastsafetensors", "instanttensor",
    "sharded_state", "presharded", "layered", "expert_pack", "jax",
}  # fmt: skip
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".npy", ".msgpack", ".h5")
# Small files that change the model's results: code, and the interpretation of weights, adapters and
# images.
_SMALL_FILES = re.compile(r".*\.py|config\.json|params\.json|.*(adapter|quant|scale|index|processor).*\.json")
# Files up to this length are read whole; of longer ones, the tensor table and samples.
_WHOLE_FILE_MAX = 4 << 20
_SAMPLE = 4096
_SAMPLES = 512
# Longest table of a safetensors file, as the format defines it.
_TABLE_MAX = 100 << 20


def weights_of(model: str, revision: str | None, load_format: str, commit: str | None = None, cache: str | None = None) -> str | None:
    """A text that identifies the weights of a model, given by path or Hub name; None if they cannot
    be identified."""
    if load_format == "dummy":
        return "dummy"
    if load_format not in _LOCAL_FORMATS:
        return None
    if os.path.exists(model):
        found = files_of(model)
        return f"files {found}" if found else None
    commit = commit or _commit_of(model, revision, cache)
    return f"{model}@{commit}" if commit else None


def files_of(path: str) -> str | None:
    """A digest of a model's or an adapter's files; None if there are no weights among them.
    Independent of paths and times."""
    if os.path.isfile(path):
        files = {os.path.basename(path): path}
    else:
        files = {os.path.relpath(file, path): file for file in _files_below(path)}
        if not any(name.endswith(_WEIGHT_SUFFIXES) for name in files):
            return None
    found = hashlib.sha256()
    for name, file in sorted(files.items()):
        found.update(f"{name} {os.path.getsize(file)}\n".encode())
        with open(file, "rb") as opened:
            for part in _parts(opened, os.path.getsize(file)):
                found.update(part)
    return found.hexdigest()


def _files_below(path: str) -> Iterator[str]:
    """The files that change the model's results, including subdirectories except hidden ones."""
    seen: set[str] = set()
    for folder, below, names in os.walk(path, followlinks=True):
        # A symbolic link may lead to a parent directory.
        seen.add(os.path.realpath(folder))
        below[:] = [name for name in sorted(below) if not name.startswith(".") and os.path.realpath(os.path.join(folder, name)) not in seen]
        for name in names:
            file = os.path.join(folder, name)
            if (name.endswith(_WEIGHT_SUFFIXES) or _SMALL_FILES.fullmatch(name)) and os.path.isfile(file):
                yield file


def _parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    if size <= _WHOLE_FILE_MAX:
        yield file.read()
        return
    table = _table(file, size) if file.name.endswith(".safetensors") else b""
    yield table
    for at in _middles(table) or [(size - _SAMPLE) * n // (_SAMPLES - 1) for n in range(_SAMPLES)]:
        file.seek(at)
        yield file.read(_SAMPLE)


def _table(file: BinaryIO, size: int) -> bytes:
    """The tensor table at the head of a safetensors file, preceded by its length."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, _TABLE_MAX):
        return b""
    return length.to_bytes(8, "little") + file.read(length)


def _middles(table: bytes) -> list[int]:
    """One offset within each tensor, so that a change of any tensor can be detected."""
    if not table:
        return []
    try:
        tensors = [tensor["data_offsets"] for name, tensor in json.loads(table[8:]).items() if name != "__metadata__"]
        return sorted(len(table) + (int(begin) + int(end)) // 2 for begin, end in tensors)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _commit_of(model: str, revision: str | None, cache: str | None) -> str | None:
    """The commit of a Hub model in the local cache, from the path of its snapshot."""
    try:
        from huggingface_hub import try_to_load_from_cache

        path: Any = try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=revision)
    except Exception:
        return None
    found = re.search(r"/snapshots/([0-9a-f]{40})/", path) if isinstance(path, str) else None
    return found.group(1) if found else None
