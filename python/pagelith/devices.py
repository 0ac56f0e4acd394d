"""A device that has an engine's caches, bound to a store: puts and gets then copy to and from it
without torch, on streams of the store.

Not run with a device yet, but over fake drivers.
"""

import logging
import threading
import time
from typing import Any

from ._native import PagelithError, Store

logger = logging.getLogger(__name__)

# Kinds of torch devices with a driver that a store can use.
_KINDS = ("cuda", "npu")
# Pause between two looks at copies that a device has not ended.
_PAUSE_S = 0.001
# Longest wait for them: far longer than a device that works needs for what it does before them.
_LATE_MAX_S = 60.0


class DeviceStuck(RuntimeError):
    """Copies of a device may never end, and could still write to the engine's memory. The engine
    must not continue."""


class BoundDevice:
    """A device that the engine has initialised, in torch's terms and in those of the store."""

    def __init__(self, store: Store, device: Any, staging_bytes: int | None) -> None:
        if device.type not in _KINDS:
            raise ValueError(f"there is no driver for devices of the kind {device.type!r}")
        import torch

        self._module = torch.get_device_module(device.type)
        self._index = self._module.current_device() if device.index is None else device.index
        self.handle = store.bind_device(f"{device.type}:{self._index}", staging_bytes=staging_bytes)
        self._ending = threading.Event()

    def stream(self) -> Any:
        """A new stream."""
        return self._module.Stream(self._index)

    def ready(self) -> Any:
        """An event: all work of the current stream so far."""
        event = self._module.Event()
        event.record(self._module.current_stream(self._index))
        return event

    def settle(self, limit_s: float = _LATE_MAX_S) -> None:
        """Wait for copies that calls gave up at their timeout: until they have ended they may write
        to memory that the engine uses for something else. Raises `DeviceStuck` if they have not
        ended after `limit_s`, or if the device fails. After `end` this returns at once."""
        late = self.handle.late_copies
        if not late or self._ending.is_set():
            return
        logger.warning("pagelith: waiting for the device to end copies that are late device=%s copies=%d", self.handle.name, late)
        until = time.monotonic() + limit_s
        try:
            event = self.ready()
            while self.handle.late_copies and not self._ending.wait(_PAUSE_S):
                # An error if the device is lost.
                event.query()
                if time.monotonic() >= until:
                    raise TimeoutError(f"not done after {limit_s:g} s")
        except Exception as error:
            raise DeviceStuck(
                "pagelith: the device may still write to the engine's memory, by copies that are late: restart the engine, and check the device:"
                f" {error} device={self.handle.name} copies={late}"
            ) from error

    def end(self) -> None:
        """The engine ends: wait for no copy any more."""
        self._ending.set()


def bound(store: Store, devices: set[Any], wanted: bool | None, staging_bytes: int | None, most: int) -> BoundDevice | None:
    """The only device of these, bound to the store. `None` if it is not `wanted`, or, if that is
    `None`, cannot be used; then a line in the log has the cause. `staging_bytes` is for a store
    process, and `most` the length of the longest copy: of an object, or a group of a page."""
    if wanted is False:
        return None
    try:
        if len(devices) != 1:
            raise ValueError(f"the caches are on several devices: {', '.join(sorted(map(str, devices)))}")
        opened = store.opened
        name, staging = ("staging_bytes", staging_bytes or 0) if opened is None else ("staging.bytes of the store", opened.memory["staging"])
        if 2 * most > staging:
            raise ValueError(f"a page has {most} bytes, and '{name}' is {staging}: raise it to {2 * most}")
        return BoundDevice(store, next(iter(devices)), staging_bytes if opened is None else None)
    except (PagelithError, ValueError) as error:
        if wanted:
            raise ValueError(f"pagelith: the store cannot copy to and from the device: {error}") from error
        logger.info("pagelith: torch copies between the device and the host, as the store cannot: %s", error)
        return None
