"""Stress runs and stores with planted errors: each must be detected, or the checks prove nothing.

    python -m storm.planted [KIND]
"""

import ctypes
import os
import sys
import tempfile

os.environ.pop("LD_PRELOAD", None)

import pagelith  # noqa: E402

from .memory import Slots  # noqa: E402
from .stores import Embedded  # noqa: E402
from .tally import Tally  # noqa: E402
from .threads import Storm  # noqa: E402

# Number of calls before the first error.
_SOON = 200


def freed() -> None:
    """A get into memory that Python has freed: AddressSanitizer ends the process."""
    key = pagelith.Key(pagelith.Namespace("planted"), bytes(32))
    with pagelith.Store({"dram": {"bytes": "1MiB"}}) as store:
        assert store.put([key], [bytes(100_000)])[0]
        memory = bytearray(100_000)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        del memory
        store.get([key], [(address, 100_000)])


class FaultyStore:
    """A store that fails in some of its gets."""

    def __init__(self, store: pagelith.Store) -> None:
        self._store, self._gets = store, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, keys, given, **how):
        outcomes = self._store.get(keys, given, **how)
        self._gets += 1
        self.spoil(given, outcomes)
        return outcomes


class BitFlip(FaultyStore):
    """Flips one bit of one hit."""

    def spoil(self, given, outcomes) -> None:
        for memory, outcome in zip(given, outcomes, strict=False):
            if self._gets > _SOON and outcome and isinstance(memory, bytearray | memoryview):
                memory[len(memory) // 2] ^= 1
                return


class KeptArguments(FaultyStore):
    """Keeps its arguments for ever."""

    _kept: list = []

    def spoil(self, given, outcomes) -> None:
        self._kept.extend(memoryview(memory) for memory in given if isinstance(memory, bytearray))


KINDS = {"other": BitFlip, "kept": KeptArguments}


def storm(kind: str) -> list[str]:
    """The errors that a stress run finds."""
    tally = Tally()

    class Home(Embedded):
        def _open(self):
            return KINDS[kind](super()._open())

    with tempfile.TemporaryDirectory() as directory:
        home = Home(tally, Slots(64, tally), directory)
        Storm(1, 20_000, [home], tally).run()
        home.close()
    return tally.failures


if __name__ == "__main__":
    if sys.argv[1:]:
        print(storm(sys.argv[1])[:1])
    else:
        freed()
