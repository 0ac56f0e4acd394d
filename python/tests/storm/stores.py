"""The stores: an embedded one, and one of a store process, which is killed at times."""

import collections
import json
import os
import random
import signal
import threading

import pagelith
from test_store import NotListening, Process

from .memory import Slots
from .tally import Tally

# Number of attempts to open a directory whose last owner was killed: its lock lasts until its last
# write has ended.
_TRIES = 2000
_DRAM = "8MiB"


def _settings(directory: str) -> dict:
    """Settings of a store that is too small for all objects, and keeps open groups only briefly."""
    return {
        "dram": {"bytes": _DRAM},
        "ssd": {"dirs": [directory], "bytes": "32MiB", "segment_bytes": "2MiB"},
        "index": {"max_objects": 10_000},
        "groups": {"deadline_ms": 500},
        "events": {"max": 10_000},
    }


class Home:
    """A store that is closed and opened again while it is in use, the memory for its calls, and the
    pins and views of it."""

    name: str

    def __init__(self, tally: Tally, slots: Slots) -> None:
        self.tally, self.slots = tally, slots
        self._lock = threading.Lock()
        self._held: collections.deque = collections.deque()
        self.store = self._open()

    def _open(self) -> pagelith.Store:
        raise NotImplementedError

    def reopen(self, _rng: random.Random) -> None:
        """Close the store during calls, and open another."""
        with self._lock:
            self.store.close()
            self.store = self._open()
            self.tally.count(f"reopened: {self.name}")

    def hold(self, what):
        """Keep an object for a while, and drop the oldest kept one."""
        self._held.append(what)
        while len(self._held) > 12:
            try:
                self._held.popleft()
            except IndexError:
                break
        return what

    def held(self, rng: random.Random, kind: type):
        """A kept object of this type."""
        there = [each for each in list(self._held) if isinstance(each, kind)]
        return rng.choice(there) if there else None

    def close(self) -> None:
        self._held.clear()
        self.store.close()


class Embedded(Home):
    name = "embedded"

    def __init__(self, tally: Tally, slots: Slots, directory: str) -> None:
        self._directory = os.path.join(directory, "embedded")
        self._times = 0
        super().__init__(tally, slots)

    def _open(self) -> pagelith.Store:
        self._times += 1
        settings = _settings(self._directory)
        settings["dram"]["promote"] = ("always", "never")[self._times % 2]
        # Alternate between both transports.
        settings["ssd"]["io"] = ("auto", "blocking")[self._times // 2 % 2]
        return pagelith.Store(settings)


class Served(Home):
    name = "attached"

    def __init__(self, tally: Tally, slots: Slots, directory: str) -> None:
        self._settings = os.path.join(directory, "served.json")
        with open(self._settings, "w") as file:
            json.dump(_settings(os.path.join(directory, "served")), file)
        self._listen = "unix:" + os.path.join(directory, "socket")
        self._process = self._serve()
        super().__init__(tally, slots)

    def _serve(self) -> Process:
        # Read from the file, since the flag has a default.
        flags = ["--config", self._settings, "--dram", _DRAM]
        for _ in range(_TRIES):
            try:
                return Process(self._listen, *flags)
            except NotListening as why:
                if "store is open elsewhere" not in str(why):
                    raise
        raise AssertionError("the killed process's lock stays")

    def _open(self) -> pagelith.Store:
        store = pagelith.Store.attach(self._process.address)
        store.share(self.slots.fd, self.slots.address, len(self.slots.memory))
        return store

    def reopen(self, rng: random.Random) -> None:
        what = rng.random()
        if what < 0.15:
            with self._lock:
                self._end(signal.SIGKILL)
                os.unlink(self._listen.removeprefix("unix:"))
                self._process = self._serve()
                self.tally.count("killed: the store process")
        if what > 0.05:
            # At times a client detects the end itself, and does not contact the store for a second.
            super().reopen(rng)

    def _end(self, how: signal.Signals) -> None:
        """End the process, which must have been running, and must have found no error."""
        process = self._process
        early = process.child.poll()
        process.child.send_signal(how)
        code = process.child.wait()
        process.said.seek(0)
        said = process.said.read()
        process.end()
        if early is not None or code not in (0, -how) or "AddressSanitizer" in said or "panicked" in said:
            self.tally.fail(f"the store process ended early={early} code={code}: {said}")

    def close(self) -> None:
        super().close()
        self._end(signal.SIGTERM)
