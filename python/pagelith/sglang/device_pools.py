"""Device pools as objects: a page of a pool is one object, with its layers one after the other, so
that layers that are needed first are a range of it."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pagelith

from .pools import DRAFTS, Placement

# A piece of memory: address and length, on a device after its handle.
Piece = tuple[Any, ...]


class DevicePool:
    """A pool of SGLang's device pool group (`DevicePoolEntry`)."""

    def __init__(self, name: str, entry: Any, where: Placement) -> None:
        self.name, self.entry = name, entry
        self.shard = where.shard(sliced=not where.replicated)
        # By layer: the first row, the distance of rows, and the length of each buffer's part.
        self._layers = {layer: _parts(entry, layer) for layer in sorted(entry.layer_mapping)}
        parts = [part for parts in self._layers.values() for part in parts]
        if sorted(parts) != sorted(part for component in entry.buffer_meta for part in component):
            raise ValueError(f"pagelith: the layers of pool {name!r} do not have each of its buffers once")
        self.bytes = sum(length for _, _, length in parts)

    def rows(self, indices: Any, pages: int) -> list[int]:
        """The row of each page, from its slots."""
        rows: list[int] = self.entry.prepare_locations(indices)
        if len(rows) != pages:
            raise ValueError(f"pool {self.name!r} names {len(rows)} rows for {pages} pages")
        return rows

    def range_of(self, layers: range) -> tuple[int, int] | None:
        """The bytes of these layers in an object; `None` if it has none of them."""
        lengths = {layer: sum(length for _, _, length in parts) for layer, parts in self._layers.items()}
        before = sum(length for layer, length in lengths.items() if layer < layers.start)
        inside = sum(length for layer, length in lengths.items() if layer in layers)
        return (before, before + inside) if inside else None

    def memory(self, rows: Sequence[int], device: tuple[Any, ...], layers: range | None = None) -> list[list[Piece]]:
        """The memory of these layers, or all, in each row. `device` is its handle, or nothing on the
        host."""
        parts = [part for layer, parts in self._layers.items() if layers is None or layer in layers for part in parts]
        return [[(*device, *piece) for piece in _joined((base + row * stride, length) for base, stride, length in parts)] for row in rows]

    def facts(self) -> tuple[str, str]:
        """What the bytes depend on: two servers that differ here share no page."""
        lengths = [[layer, *(length for _, _, length in parts)] for layer, parts in self._layers.items()]
        kinds = sorted({f"{buffer.dtype} {list(buffer.shape[1:])}" for buffer in self.entry.kv_buffer})
        of_device = getattr(self.entry.device_pool, "kv_cache_layout", "")
        digest = hashlib.sha256(repr(lengths).encode()).hexdigest()
        return f"pool:{self.name}", f"{of_device} {self.entry.page_size} {' '.join(kinds)} {self.bytes} {digest}"

    def key(self, namespace: pagelith.Namespace) -> pagelith.Key:
        """The key template, without a page."""
        pool = DRAFTS.get(self.name, self.name)
        return pagelith.Key(namespace, bytes(32), pool=pool, component="packed", draft=self.name in DRAFTS, shard=self.shard)


def _parts(entry: Any, layer: int) -> list[tuple[int, int, int]]:
    mapped = entry.layer_mapping[layer]
    buffers = [mapped] if isinstance(mapped, int) else list(mapped)
    return [component[at] for component in entry.buffer_meta for at in buffers]


def _joined(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjacent pieces as one."""
    found: list[tuple[int, int]] = []
    for address, length in pieces:
        if found and sum(found[-1]) == address:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((address, length))
    return found
