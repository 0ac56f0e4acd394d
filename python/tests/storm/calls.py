"""One call of a store, and concurrent changes of its memory."""

import random

from .tally import Tally


class Call:
    """A call made once, by some thread. Its places are taken by the first of: the thread that made
    it, to check them, or the thread that drops them."""

    def __init__(self, name, body, places=(), check=None, whole=False, writes=False, forgets=False) -> None:
        self.name, self._body, self._check = name, body, check
        # Submitted, and its result is not read: the batch keeps its memory longer than this object.
        self._forgets = forgets
        # Makes these steps atomic.
        self.whole = whole
        self._given = [place.given for place in places]
        self._places = [list(places)]
        self._heap = [heap for place in places for heap in place.heap]
        # Source memory must not be extended: a call that has not started yet would put the longer
        # memory.
        self._may_be_extended = writes
        self.may_be_dropped = bool(places) and all(place.may_be_dropped for place in places)
        self.begun = self.ended = self.spoiled = False

    def run(self):
        self.begun = True
        try:
            return self._body(self._given)
        finally:
            self.ended = True

    def under_way(self) -> bool:
        return self.begun and not self.ended

    def finish(self, tally: Tally, result) -> None:
        """Check the result; the memory belongs to the caller again."""
        places = self._take()
        if places is None or self.spoiled:
            tally.count("ended without its memory")
        self._check(result, places, self.spoiled or places is None)
        self._release(tally, places)

    def failed(self, tally: Tally, error: BaseException) -> None:
        places = self._take()
        tally.error(self.name, error, self.spoiled or places is None)
        self._release(tally, places)

    def interrupted(self) -> None:
        """A signal handler raised in its thread: if the call had started, it has returned."""
        self.ended = True
        self._take()
        self._given.clear()

    def drop(self, tally: Tally, how: str) -> None:
        """Drop the memory during the call."""
        places = self._take() if self.may_be_dropped else None
        if places is None:
            return
        under_way = self.under_way()
        self._given.clear()
        self._heap = []
        for place in places:
            place.empty()
        del places
        tally.count(f"{how} while in progress" if under_way else f"{how} before or after")

    def extend(self, tally: Tally, rng: random.Random) -> None:
        """Extend memory that Python can move: it must not move while a call uses it."""
        places = self._take() if self._may_be_extended and self._heap and self.begun else None
        if places is None:
            return
        try:
            rng.choice(self._heap).extend(b"more")
        except BufferError:
            tally.count("not moved during a call")
        except IndexError:
            # The call has just ended.
            pass
        else:
            self.spoiled = True
            tally.count("moved before or after")
        # Memory named by address must be kept for the call.
        self._places.append(places)

    def _take(self):
        try:
            return self._places.pop()
        except IndexError:
            return None

    def _release(self, tally: Tally, places) -> None:
        """After the call has returned, its memory can be moved."""
        self._given.clear()
        heap, self._heap = self._heap, []
        if places is None:
            return
        for view in heap:
            try:
                view.append(0)
            except BufferError:
                if self._forgets:
                    tally.count("held by a dropped batch")
                else:
                    tally.fail(f"{self.name}: memory is held by a call that has returned")
