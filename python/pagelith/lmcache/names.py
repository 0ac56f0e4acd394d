"""LMCache's object keys as keys of a store.

Its keys do not say what type and shape the bytes have; memory objects and look-ups do. Both are in the namespace here, so that
what another configuration stored is not found, rather than read.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import pagelith

from .settings import Settings

logger = logging.getLogger(__name__)

# Shapes and types of an object's tensors.
Layout = tuple[tuple[Any, ...], tuple[Any, ...]]
# Most combinations of model, rank, group, salt and layout that are remembered: each takes about a kilobyte, and is made again.
_KNOWN_MAX = 4096


class Names:
    """Makes keys, and remembers of each model, rank and group which layouts it has seen."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._templates: dict[tuple[Any, ...], pagelith.Key] = {}
        self._seen: dict[tuple[Any, ...], dict[Layout | None, None]] = {}
        self._said = False

    def of_objects(self, keys: Sequence[Any], objects: Sequence[Any]) -> list[pagelith.Key]:
        """The names under which objects of their layouts are stored."""
        return [self._of_object(key, memory) for key, memory in zip(keys, objects, strict=True)]

    def _of_object(self, key: Any, memory: Any) -> pagelith.Key:
        layout = _layout_of(memory)
        if self._settings.serde and not _is_bytes(layout):
            raise ValueError(
                f"adapter_params has 'serde', but LMCache passes objects of {_text(layout)}: configure LMCache's own"
                ' "serde": {...} next to adapter_params, or remove it from adapter_params'
            )
        if memory.get_size() != _bytes_of(layout):
            raise ValueError(
                f"an object of {_bytes_of(layout)} bytes uses {memory.get_size()} of them: a serde with output of variable"
                " length is not supported, since LMCache does not pass its length to reads"
            )
        known = None if self._settings.serde else layout
        self._see(key, known)
        return self._named(key, known)

    def looked_for(self, keys: Sequence[Any], layouts: Any) -> list[pagelith.Key | None]:
        """The names of what a look-up asks for; `None` where neither it nor an object has said which layout that is."""
        told = _told(layouts)
        templates: dict[tuple[Any, ...], pagelith.Key | None] = {}
        names: list[pagelith.Key | None] = []
        for key in keys:
            of = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
            if of not in templates:
                templates[of] = self._looked_for(key, told)
            template = templates[of]
            names.append(template and template.on_page(_page(key)))
        return names

    def _looked_for(self, key: Any, told: dict[int, Layout]) -> pagelith.Key | None:
        if self._settings.serde:
            return self._template(key, None)
        if key.object_group_id in told:
            return self._template(key, told[key.object_group_id])
        seen = self._seen_of(key)
        return self._template(key, seen[-1]) if seen else None

    def all_of(self, key: Any) -> list[pagelith.Key]:
        """Each name that the key has had here."""
        return [self._named(key, layout) for layout in self._seen_of(key)]

    def check(self, key: Any, layouts: Any) -> None:
        """Say once why a look-up found nothing if it never can: LMCache's serde is on, and this adapter was not told."""
        layout = _told(layouts).get(key.object_group_id)
        if self._said or self._settings.serde or layout is None or _is_bytes(layout):
            return
        if any(seen is not None and _is_bytes(seen) for seen in self._seen_of(key)):
            self._said = True
            logger.error(
                "pagelith: LMCache stores serialized bytes but looks up %s, which it will not find: pass \"serde\": a text that"
                " names the serde and all that its bytes depend on, in adapter_params",
                _text(layout),
            )

    def _named(self, key: Any, layout: Layout | None) -> pagelith.Key:
        return self._template(key, layout).on_page(_page(key))

    def _template(self, key: Any, layout: Layout | None) -> pagelith.Key:
        """The name of no chunk in particular."""
        of = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, layout)
        template = self._templates.get(of)
        if template is None:
            template = self._made(key, layout)
            with self._lock:
                if len(self._templates) >= _KNOWN_MAX:
                    self._templates.clear()
                self._templates[of] = template
        return template

    def _made(self, key: Any, layout: Layout | None) -> pagelith.Key:
        settings = self._settings
        extra = [("client", "lmcache-l2"), ("kv_rank", f"{key.kv_rank:#x}"), ("cache_salt", key.cache_salt)]
        if layout is None:
            extra.append(("serde", settings.serde))
        else:
            extra += [(f"tensor:{at}", text) for at, text in enumerate(_tensors(layout))]
        namespace = pagelith.Namespace(key.model_name, tenant=settings.tenant, revision=settings.revision, extra=extra)
        return pagelith.Key(namespace, bytes(32), pool=f"group_{key.object_group_id}", component="data")

    def _see(self, key: Any, layout: Layout | None) -> None:
        of = (key.model_name, key.kv_rank, key.object_group_id)
        with self._lock:
            if of not in self._seen and len(self._seen) >= _KNOWN_MAX:
                del self._seen[next(iter(self._seen))]
            seen = self._seen.setdefault(of, {})
            # The latest is the last.
            seen.pop(layout, None)
            seen[layout] = None

    def _seen_of(self, key: Any) -> list[Layout | None]:
        with self._lock:
            return list(self._seen.get((key.model_name, key.kv_rank, key.object_group_id), ()))


def _page(key: Any) -> bytes | str:
    chunk = key.chunk_hash
    return chunk if len(chunk) == 32 else f"lmcache chunk {chunk.hex()}"


def _told(layouts: Any) -> dict[int, Layout]:
    """The layouts that a look-up brings, by group."""
    return {group: (tuple(told.shapes), tuple(told.dtypes)) for group, told in (layouts or {}).items() if told.shapes}


def _layout_of(memory: Any) -> Layout:
    meta = memory.metadata
    shapes = meta.shapes or [meta.shape]
    dtypes = meta.dtypes or [meta.dtype]
    return tuple(shapes), tuple(dtypes)


def _is_bytes(layout: Layout) -> bool:
    """Whether it is what LMCache's serde makes: one row of bytes."""
    shapes, dtypes = layout
    return len(shapes) == 1 and len(shapes[0]) == 1 and str(dtypes[0]) == "torch.uint8"


@lru_cache(_KNOWN_MAX)
def _bytes_of(layout: Layout) -> int:
    total = 0
    for shape, dtype in zip(*layout, strict=True):
        count = int(dtype.itemsize)
        for length in shape:
            count *= int(length)
        total += count
    return total


def _tensors(layout: Layout) -> Iterable[str]:
    for shape, dtype in zip(*layout, strict=True):
        yield f"{dtype} {'x'.join(str(int(length)) for length in shape)}"


def _text(layout: Layout) -> str:
    return ", ".join(_tensors(layout))


def addresses(objects: Sequence[Any]) -> list[tuple[int, int]]:
    """Where memory objects lie; an address of a GPU would end the process."""
    for memory in objects:
        tensor = memory.raw_tensor
        if tensor is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("LMCache's L1 is not in host memory, the only memory that this adapter reads and writes: use its DRAM L1")
        if tensor.numel() * tensor.element_size() < memory.get_size():
            raise ValueError(f"a memory object uses {memory.get_size()} bytes, but its tensor has {tensor.numel() * tensor.element_size()}")
    return [(memory.data_ptr, memory.get_size()) for memory in objects]
