"""One call of a store, and what others do to its memory meanwhile."""

import random

from .tally import Tally


class Call:
    """A call that some thread makes, once. Whoever takes its places first has them: who made it, to look at them, or who drops them."""

    def __init__(self, name, body, places=(), check=None, whole=False, writes=False, forgets=False) -> None:
        self.name, self._body, self._check = name, body, check
        # It is handed over, and nobody asks what became of it: it has its memory for longer than this.
        self._forgets = forgets
        # Nothing may come between its steps.
        self.whole = whole
        self._given = [place.given for place in places]
        self._places = [list(places)]
        self._heap = [heap for place in places for heap in place.heap]
        # What it reads may not be made longer: if it has not begun yet, that is what it would put.
        self._may_be_stretched = writes
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

    def settle(self, tally: Tally, result) -> None:
        """Look at what came of it; its memory is its caller's again."""
        places = self._take()
        if places is None or self.spoiled:
            tally.count("ended without its memory")
        self._check(result, places, self.spoiled or places is None)
        self._let_go(tally, places)

    def failed(self, tally: Tally, error: BaseException) -> None:
        places = self._take()
        tally.error(self.name, error, self.spoiled or places is None)
        self._let_go(tally, places)

    def interrupted(self) -> None:
        """A signal's handler raised in its thread: it has returned, if it had begun."""
        self.ended = True
        self._take()
        self._given.clear()

    def drop(self, tally: Tally, how: str) -> None:
        """Take its memory from under it."""
        places = self._take() if self.may_be_dropped else None
        if places is None:
            return
        under_way = self.under_way()
        self._given.clear()
        self._heap = []
        for place in places:
            place.empty()
        del places
        tally.count(f"{how} while it was under way" if under_way else f"{how} before or after")

    def stretch(self, tally: Tally, rng: random.Random) -> None:
        """Make memory that Python moves longer: it may not move while a call has it."""
        places = self._take() if self._may_be_stretched and self._heap and self.begun else None
        if places is None:
            return
        try:
            rng.choice(self._heap).extend(b"more")
        except BufferError:
            tally.count("not moved while a call had it")
        except IndexError:
            # It has just ended.
            pass
        else:
            self.spoiled = True
            tally.count("moved before or after")
        # What it names by address is held for it all the same.
        self._places.append(places)

    def _take(self):
        try:
            return self._places.pop()
        except IndexError:
            return None

    def _let_go(self, tally: Tally, places) -> None:
        """What a call that returned has let go of can be moved."""
        self._given.clear()
        heap, self._heap = self._heap, []
        if places is None:
            return
        for view in heap:
            try:
                view.append(0)
            except BufferError:
                if self._forgets:
                    tally.count("held by what was forgotten")
                else:
                    tally.fail(f"{self.name}: memory is held by a call that has returned")
