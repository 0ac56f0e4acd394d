"""The device of SGLang's pools, as a thread of the linker uses it: nothing is needed for pools in
host memory."""

from collections.abc import Sequence
from typing import Any

from ..devices import BoundDevice


class DeviceStream:
    """A stream of one thread. `device` is `None` for pools in host memory."""

    def __init__(self, device: BoundDevice | None) -> None:
        self._device = device
        self._stream = None if device is None else device.stream()
        # What names the device in a piece of memory.
        self.device: tuple[Any, ...] = () if device is None else (device.handle,)

    def after(self, events: Sequence[Any]) -> dict[str, Any]:
        """Further arguments of calls, whose copies begin after these events. The first one is waited
        for: with it the slots' numbers can be read."""
        events[0].synchronize()
        if self._stream is None:
            for event in events[1:]:
                event.synchronize()
            return {}
        for event in events:
            self._stream.wait_event(event)
        return {"stream": self._stream}

    def settle(self) -> None:
        """Wait for copies that calls gave up."""
        if self._device is not None:
            self._device.settle()
