"""Loads of a batch of requests, layer by layer: the first layers are computed while later ones are
read."""

import logging
import time
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import pagelith

from ..failures import Failures
from ..missed import Missed
from ..releases import Releases
from .device_pools import DevicePool
from .streams import DeviceStream

logger = logging.getLogger(__name__)

# Reads in flight: one is copied to the device while the next one is read.
_IN_FLIGHT = 2


class Pages(NamedTuple):
    """Pages of a pool: SGLang's hashes, their keys, and their slots on the device."""

    pool: DevicePool
    hashes: list[str]
    keys: list[pagelith.Key]
    indices: Any


class Load(NamedTuple):
    """The loads of a batch of requests."""

    # Index of the batch in SGLang's counter of layers.
    counter: int
    pages: list[Pages]
    # The slots are the requests' once these events are done; the first is for the slots' numbers.
    ready: list[Any]
    # Keep the objects until the load has ended.
    pins: list[pagelith.Pin]


class _Missing(Exception):
    """An object that was found before is missing."""


class _Read(NamedTuple):
    layers: range
    names: list[Hashable]
    keys: list[pagelith.Key]
    batch: pagelith.Submitted | None


class Loading:
    """Executes loads on one thread. `counter` learns of each layer once it is on the device."""

    def __init__(
        self,
        store: pagelith.Store,
        stream: DeviceStream,
        counter: Any,
        failures: Failures,
        timeout: float,
        read_layers: int,
        releases: Releases,
        missed: Missed,
    ) -> None:
        self._store, self._stream, self._counter, self._failures = store, stream, counter, failures
        self._timeout, self._read_layers, self._releases, self._missed = timeout, read_layers, releases, missed
        # Why it is not known whether a failed load still writes to its slots.
        self._stuck: Exception | None = None

    def run(self, load: Load) -> None:
        """Read all layers. Nothing writes to the slots once this returns, unless `check` raises an
        error."""
        reads: deque[_Read] = deque()
        try:
            self._read(load, reads)
        except Exception as error:
            try:
                for read in reads:
                    _end(read)
                # SGLang reuses the slots once the load has failed.
                self._stream.settle()
            except Exception as stuck:
                self._stuck = stuck
            finally:
                self._counter.fail(load.counter, error)
            if not isinstance(error, _Missing):
                self._failures.call("load", error)
        finally:
            # The next load does not wait, nor does a reset, on the scheduler's thread.
            for pin in load.pins:
                self._releases.add(pin)

    def check(self) -> None:
        """Raise an error, which ends the engine, if a failed load may still write to its slots."""
        if self._stuck is not None:
            raise self._stuck

    def _read(self, load: Load, reads: "deque[_Read]") -> None:
        how = self._stream.after(load.ready)
        rows = [(pages, pages.pool.rows(pages.indices, len(pages.keys))) for pages in load.pages]
        deadline, layers = time.monotonic() + self._timeout, self._counter.num_layers
        for first in range(0, layers, self._read_layers):
            reads.append(self._begin(rows, range(first, min(first + self._read_layers, layers)), deadline, how))
            if len(reads) == _IN_FLIGHT:
                self._complete(load, reads)
        while reads:
            self._complete(load, reads)

    def _begin(self, rows: Sequence[tuple[Pages, list[int]]], layers: range, deadline: float, how: dict[str, Any]) -> _Read:
        """Begin to read some layers of all pages."""
        keys: list[pagelith.Key] = []
        into: list[Any] = []
        ranges: list[tuple[int, int] | None] = []
        names: list[Hashable] = []
        for (pool, hashes, of_pages, _), at in rows:
            part = pool.range_of(layers)
            if part is not None:
                names += [(pool.name, one) for one in hashes]
                keys += of_pages
                into += pool.memory(at, self._stream.device, layers)
                ranges += [None if part == (0, pool.bytes) else part] * len(of_pages)
        if not keys:
            return _Read(layers, names, keys, None)
        left = max(0.0, deadline - time.monotonic())
        return _Read(layers, names, keys, self._store.submit_get(keys, into, ranges=ranges, timeout=left, **how))

    def _complete(self, load: Load, reads: "deque[_Read]") -> None:
        """Wait for the oldest read: its layers are verified and on the device."""
        read = reads[0]
        if read.batch is not None:
            outcomes = read.batch.result()
            self._failures.read(read.keys, outcomes, "load", found=True)
            if not all(outcomes):
                self._missed.add(name for name, outcome in zip(read.names, outcomes, strict=True) if not outcome)
                raise _Missing(f"objects={sum(not one for one in outcomes)}")
        reads.popleft()
        for layer in read.layers:
            self._counter.complete(load.counter, layer)


def _end(read: _Read) -> None:
    """Wait for a read, whatever it has got."""
    try:
        if read.batch is not None:
            read.batch.result()
    except Exception as error:
        logger.debug("pagelith: a read that ran with a failed one failed too: %s", error)
