"""Memory of calls.

A slot is a part of a region that is never unmapped. When nothing refers to it any more, including
calls in progress, it holds a pattern until it is taken again: then the pattern is checked. Slots
are reused in the order of their release, so that each stays free for a while.
"""

import collections
import ctypes
import mmap
import os
import random
import weakref

from test_tensors import DESTRUCTOR, NEW, Structure

SLOT = 64 << 10
_PATTERN = b"\xa5" * SLOT


class _ReleaseCallback(weakref.ref):
    """Calls back at the end of a view. The callback is a C function, so no signal handler can
    interrupt it."""

    __slots__ = ("slot",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Slots:
    def __init__(self, count: int, tally, shared: bool = False) -> None:
        self.fd = os.memfd_create("storm") if shared else -1
        if shared:
            os.ftruncate(self.fd, count * SLOT)
        self.memory = mmap.mmap(self.fd, count * SLOT)
        self.memory[:] = _PATTERN * count
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._all = memoryview(self.memory)
        self._tally = tally
        self._free = collections.deque(range(count))
        self._released: collections.deque[_ReleaseCallback] = collections.deque()
        self._watched: dict[int, _ReleaseCallback] = {}
        self.count = count

    def take(self, length: int) -> memoryview | None:
        """A view of a free slot's first bytes; `None` if no slot is free."""
        self.fill_released()
        try:
            slot = self._free.popleft()
        except IndexError:
            return None
        self._look(slot)
        view = self._all[slot * SLOT : slot * SLOT + length]
        gone = _ReleaseCallback(view, self._released.append)
        gone.slot = slot
        self._watched[slot] = gone
        return view

    def fill_released(self) -> None:
        """Write the pattern over released slots."""
        while True:
            try:
                slot = self._released.popleft().slot
            except IndexError:
                return
            self._watched.pop(slot, None)
            self._all[slot * SLOT : (slot + 1) * SLOT] = _PATTERN
            self._free.append(slot)

    def check_oldest(self) -> None:
        """Check the slot that has been free for longest."""
        try:
            slot = self._free.popleft()
        except IndexError:
            return
        self._look(slot)
        self._free.append(slot)

    def check_all(self) -> int:
        """Check every free slot; returns the number of slots in use."""
        self.fill_released()
        for slot in list(self._free):
            self._look(slot)
        return self.count - len(self._free)

    def _look(self, slot: int) -> None:
        self._tally.count("slots checked")
        there = self._all[slot * SLOT : (slot + 1) * SLOT]
        if there != _PATTERN:
            wrong = [at for at, byte in enumerate(there) if byte != _PATTERN[0]]
            first, last = wrong[0], wrong[-1] + 1
            start = bytes(there[first : first + 16]).hex()
            self._tally.fail(f"memory was written after its release, bytes {first} to {last} of a slot: {start}")


class _LentTensor:
    """A tensor over a view, for one call. The view is kept until the capsule is released."""

    held: dict[int, "_LentTensor"] = {}

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.shape = (ctypes.c_int64 * 1)(len(view))
        self.structure = Structure(
            data=ctypes.addressof(ctypes.c_char.from_buffer(view)),
            device_type=1,
            ndim=1,
            code=1,
            bits=8,
            lanes=1,
            shape=ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self) -> object:
        at = ctypes.addressof(self.structure)
        _LentTensor.held[at] = self
        return NEW(at, b"dltensor", _drop)


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]


@DESTRUCTOR
def _drop(capsule: int) -> None:
    _LentTensor.held.pop(_pointer(capsule, b"dltensor"), None)


class Place:
    """Source or destination memory of an object."""

    def __init__(self, given, views, heap=()) -> None:
        # The argument of the call, the memory behind it, and the part of it that Python frees.
        self.given, self.views, self.heap = given, views, list(heap)
        # The caller must keep memory named by address.
        self.may_be_dropped = not isinstance(given, tuple)

    @property
    def bytes(self) -> bytes:
        return b"".join(self.views)

    def fill(self, content: memoryview) -> None:
        at = 0
        for view in self.views:
            view[:] = content[at : at + len(view)]
            at += len(view)

    def empty(self) -> None:
        """Drop the argument while others may still use it."""
        if isinstance(self.given, list):
            self.given.clear()
        self.given, self.views, self.heap = None, [], []


FORMS = ("view", "view", "heap", "heap", "scattered", "scattered", "address", "tensor")


def place(rng: random.Random, slots: Slots, length: int, tensors: bool = True) -> Place:
    """Memory of this length, of a random kind."""
    form = rng.choice(FORMS)
    if length > SLOT or form == "scattered":
        return _scattered(rng, slots, length, tensors)
    view = None if form == "heap" else slots.take(length)
    if view is None:
        heap = bytearray(length)
        return Place(heap, [heap], [heap])
    if form == "address":
        # The caller keeps that memory.
        return Place((ctypes.addressof(ctypes.c_char.from_buffer(view)), length), [view])
    if form == "tensor" and tensors:
        return Place(_LentTensor(view), [view])
    return Place(view, [view])


def _scattered(rng: random.Random, slots: Slots, length: int, tensors: bool) -> Place:
    views: list = []
    given: list = []
    while length:
        some = min(length, SLOT, rng.choice((1, 100, 4096, SLOT, SLOT)))
        view = slots.take(some) if rng.random() < 0.6 else None
        views.append(bytearray(some) if view is None else view)
        # A call copies the list, and keeps its entries itself.
        given.append(_LentTensor(view) if view is not None and tensors and rng.random() < 0.3 else views[-1])
        length -= some
        if len(views) == 8 and length:
            views.append(bytearray(length))
            given.append(views[-1])
            break
    if rng.random() < 0.2:
        given.insert(rng.randrange(len(given) + 1), bytearray())
    return Place(given, views, [view for view in views if isinstance(view, bytearray)])
