"""LMCache's object keys as keys of a store.

Its keys do not contain the types and shapes of the bytes; memory objects and lookups do. Both are
part of the namespace here, so that objects of another configuration are not found, instead of being
read wrongly.
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
# Most combinations of model, rank, group, salt and layout that are cached: each takes about a
# kilobyte and can be recomputed.
_CACHED_MAX = 4096


class Names:
    """Builds keys, and remembers the layouts seen for each model, rank and group."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._templates: dict[tuple[Any, ...], pagelith.Key] = {}
        self._layouts: dict[tuple[Any, ...], dict[Layout | None, None]] = {}
        self._serde_reported = False

    def of_objects(self, keys: Sequence[Any], objects: Sequence[Any]) -> list[pagelith.Key]:
        """The keys of objects with their layouts."""
        return [self._key_of_object(key, memory) for key, memory in zip(keys, objects, strict=True)]

    def _key_of_object(self, key: Any, memory: Any) -> pagelith.Key:
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
        self._add_layout(key, known)
        return self._key_with_layout(key, known)

    def looked_for(self, keys: Sequence[Any], layouts: Any) -> list[pagelith.Key | None]:
        """The keys for a lookup; `None` where neither the lookup nor an earlier object defined
        the layout."""
        group_layouts = _layouts_by_group(layouts)
        templates: dict[tuple[Any, ...], pagelith.Key | None] = {}
        names: list[pagelith.Key | None] = []
        for key in keys:
            of = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
            if of not in templates:
                templates[of] = self._lookup_template(key, group_layouts)
            template = templates[of]
            names.append(template and template.on_page(_page(key)))
        return names

    def _lookup_template(self, key: Any, group_layouts: dict[int, Layout]) -> pagelith.Key | None:
        if self._settings.serde:
            return self._template(key, None)
        if key.object_group_id in group_layouts:
            return self._template(key, group_layouts[key.object_group_id])
        seen = self._layouts_of_key(key)
        return self._template(key, seen[-1]) if seen else None

    def all_of(self, key: Any) -> list[pagelith.Key]:
        """All keys that an object has had in this process, one per layout."""
        return [self._key_with_layout(key, layout) for layout in self._layouts_of_key(key)]

    def check(self, key: Any, layouts: Any) -> None:
        """Log once why a lookup can never succeed: LMCache's serde is on, but this adapter was not
        configured for it."""
        layout = _layouts_by_group(layouts).get(key.object_group_id)
        if self._serde_reported or self._settings.serde or layout is None or _is_bytes(layout):
            return
        if any(seen is not None and _is_bytes(seen) for seen in self._layouts_of_key(key)):
            self._serde_reported = True
            logger.error(
                "pagelith: LMCache stores serialized bytes but looks up %s, which it will not find: pass \"serde\": a text that"
                " names the serde and all that its bytes depend on, in adapter_params",
                _text(layout),
            )

    def _key_with_layout(self, key: Any, layout: Layout | None) -> pagelith.Key:
        return self._template(key, layout).on_page(_page(key))

    def _template(self, key: Any, layout: Layout | None) -> pagelith.Key:
        """A key template, without a page."""
        of = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, layout)
        template = self._templates.get(of)
        if template is None:
            template = self._make_template(key, layout)
            with self._lock:
                if len(self._templates) >= _CACHED_MAX:
                    self._templates.clear()
                self._templates[of] = template
        return template

    def _make_template(self, key: Any, layout: Layout | None) -> pagelith.Key:
        settings = self._settings
        extra = [("client", "lmcache-l2"), ("kv_rank", f"{key.kv_rank:#x}"), ("cache_salt", key.cache_salt)]
        if layout is None:
            extra.append(("serde", settings.serde))
        else:
            extra += [(f"tensor:{at}", text) for at, text in enumerate(_tensors(layout))]
        namespace = pagelith.Namespace(key.model_name, tenant=settings.tenant, revision=settings.revision, extra=extra)
        return pagelith.Key(namespace, bytes(32), pool=f"group_{key.object_group_id}", component="data")

    def _add_layout(self, key: Any, layout: Layout | None) -> None:
        of = (key.model_name, key.kv_rank, key.object_group_id)
        with self._lock:
            if of not in self._layouts and len(self._layouts) >= _CACHED_MAX:
                del self._layouts[next(iter(self._layouts))]
            seen = self._layouts.setdefault(of, {})
            # The most recent one is last.
            seen.pop(layout, None)
            seen[layout] = None

    def _layouts_of_key(self, key: Any) -> list[Layout | None]:
        with self._lock:
            return list(self._layouts.get((key.model_name, key.kv_rank, key.object_group_id), ()))


def _page(key: Any) -> bytes | str:
    chunk = key.chunk_hash
    return chunk if len(chunk) == 32 else f"lmcache chunk {chunk.hex()}"


def _layouts_by_group(layouts: Any) -> dict[int, Layout]:
    """The layouts in a lookup, by group."""
    return {group: (tuple(one.shapes), tuple(one.dtypes)) for group, one in (layouts or {}).items() if one.shapes}


def _layout_of(memory: Any) -> Layout:
    meta = memory.metadata
    shapes = meta.shapes or [meta.shape]
    dtypes = meta.dtypes or [meta.dtype]
    return tuple(shapes), tuple(dtypes)


def _is_bytes(layout: Layout) -> bool:
    """Whether it is the layout of LMCache's serde output: one row of bytes."""
    shapes, dtypes = layout
    return len(shapes) == 1 and len(shapes[0]) == 1 and str(dtypes[0]) == "torch.uint8"


@lru_cache(_CACHED_MAX)
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
    """The addresses of memory objects; an address of GPU memory would crash the process."""
    for memory in objects:
        tensor = memory.raw_tensor
        if tensor is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("LMCache's L1 is not in host memory, the only memory that this adapter reads and writes: use its DRAM L1")
        if tensor.numel() * tensor.element_size() < memory.get_size():
            raise ValueError(f"a memory object uses {memory.get_size()} bytes, but its tensor has {tensor.numel() * tensor.element_size()}")
    return [(memory.data_ptr, memory.get_size()) for memory in objects]
