"""Random calls, each with a check of its result."""

import random
from dataclasses import dataclass
from functools import partial

import pagelith

from . import content
from .calls import Call
from .content import Object
from .memory import place
from .stores import Home
from .tally import Tally


@dataclass(frozen=True)
class CheckedView:
    """A view and its expected content."""

    object: Object
    view: pagelith.View


class Actions:
    """The calls of one thread."""

    def __init__(self, rng: random.Random, home: Home, tally: Tally, tensors: bool) -> None:
        self._rng, self._home, self._tally, self._tensors = rng, home, tally, tensors

    def call(self) -> Call:
        return self._rng.choices(_ACTIONS, _WEIGHTS)[0](self)

    # Parameters.

    def _timeout(self) -> float:
        return self._rng.choice((0, 0.0001, 0.001, 0.01, 5, 5, 5, 5, 5))

    def _how(self) -> dict:
        how = {"timeout": self._timeout()}
        if self._rng.random() < 0.2:
            how["depth"] = self._rng.randrange(100)
        return how

    def _put_how(self) -> dict:
        return {**self._how(), "wait": self._rng.choice((0, 0.0005, 0.005, 0.05))}

    # Memory.

    def _sources(self, objects: list[Object]) -> list:
        places = [place(self._rng, self._home.slots, each.length, self._tensors) for each in objects]
        for each, there in zip(objects, places, strict=True):
            there.fill(each.content)
        return places

    def _put(self, name: str, objects: list[Object], body, call=None, submit=None) -> Call:
        """`body` makes the call, or receives the function `call` that makes it: directly, or
        through `submit`."""
        places, forgets = self._sources(objects), False
        if submit is not None:
            way, forgets = self._choose_mode(call, submit, places)
            body = partial(body, way)

        def check(result, places, spoiled):
            for outcome in result if isinstance(result, list) else [result]:
                self._tally.count(f"{name} {outcome.state}")
                if outcome.error is not None:
                    self._tally.error(name, outcome.error, spoiled)
            if spoiled:
                return
            for each, there in zip(objects, places, strict=True):
                if there.bytes != each.content:
                    self._tally.fail(f"{name} changed what it read {each}")

        return Call(name, body, places, check, forgets=forgets)

    # Submission.

    def _choose_mode(self, call, submit, places) -> tuple:
        """Choose how a call is made: directly, submitted and waited for, or submitted and dropped.
        Returns that, and whether it is dropped. The caller must keep memory named by address, and a
        signal may interrupt its wait."""
        what = self._rng.random() if all(there.may_be_dropped for there in places) else 1
        if what > 0.4:
            return call, False
        forgets = what < 0.1

        def handed(*given, **how):
            batch = submit(*given, **how)
            self._tally.count("submitted and dropped" if forgets else "submitted and waited for")
            return [] if forgets else batch.result()

        return handed, forgets

    def _simple_call(self, name: str, body, check=lambda result: None, whole: bool = False) -> Call:
        """A call without memory arguments."""

        def looked(result, _places, _spoiled):
            self._tally.count(name)
            check(result)

        return Call(name, body, check=looked, whole=whole)

    # Reads.

    def get(self) -> Call:
        store, rng, how = self._home.store, self._rng, self._how()
        objects = [content.anything(rng) for _ in range(rng.choice((1, 1, 4, 16)))]
        ranges: list[tuple[int, int] | None] = [None] * len(objects)
        if rng.random() < 0.3:
            ranges = [self._range(each) for each in objects]
        spans = [span or (0, each.length) for each, span in zip(objects, ranges, strict=True)]
        places = [place(rng, self._home.slots, to - start, self._tensors) for start, to in spans]

        way, forgets = self._choose_mode(store.get, store.submit_get, places)

        def body(given):
            return way([each.key for each in objects], given, ranges=ranges, **how)

        def check(result, places, spoiled):
            for at, outcome in enumerate(result):
                if outcome.error is not None:
                    self._tally.error("get", outcome.error, spoiled)
                elif not outcome:
                    self._tally.count(f"miss: {outcome.cause}")
                else:
                    start, to = spans[at]
                    self._tally.count(f"hit: {outcome.tier}, {self._home.name}")
                    self._tally.count("hit: part of an object", int(ranges[at] is not None))
                    if not spoiled and (there := places[at].bytes) != (right := objects[at].content[start:to]):
                        differ = [at for at in range(to - start) if there[at] != right[at]]
                        where = f"{len(differ)} bytes differ, from {differ[0]} to {differ[-1]}: {there[differ[0] :][:16].hex()}"
                        self._tally.fail(f"other bytes {objects[at]} {spans[at]} {self._home.name} {outcome!r} {where}")

        return Call("get", body, places, check, writes=True, forgets=forgets)

    def _range(self, each: Object) -> tuple[int, int]:
        start = self._rng.randrange(each.length)
        return start, self._rng.randrange(start, each.length) + 1

    def prefetch(self) -> Call:
        store, rng, timeout = self._home.store, self._rng, self._timeout()
        keys = [content.anything(rng).key for _ in range(rng.choice((1, 20)))]
        return self._simple_call("prefetch", lambda _: store.prefetch(keys, timeout=timeout))

    def exists(self) -> Call:
        store, rng, how = self._home.store, self._rng, self._how()
        keys = [content.anything(rng).key for _ in range(rng.choice((1, 20, 300)))]
        if rng.random() < 0.5:
            return self._simple_call("exists", lambda _: store.exists(keys, **how))
        return self._simple_call("exists_prefix", lambda _: store.exists_prefix(keys, **how))

    def exists_groups(self) -> Call:
        store, how, pages = self._home.store, self._how(), content.BASED[:20]
        names = [page.to_bytes(32, "little") for page in pages]
        state = pagelith.PoolQuery.trailing_pages([Object(0, 0, "ssm", "mamba").key])

        def check(found):
            if not found.usable_pages <= found.anchor_pages <= len(pages):
                self._tally.fail(f"no lengths {found.usable_pages} {found.anchor_pages}")

        return self._simple_call("exists_groups", lambda _: store.exists_groups(names, [Object(0, 0).key], [state], **how), check)

    # Writes.

    def put(self) -> Call:
        store, how, rng = self._home.store, self._put_how(), self._rng
        objects = [content.single(rng) for _ in range(rng.choice((1, 1, 4, 16)))]

        def body(way, given):
            return way([each.key for each in objects], given, **how)

        return self._put("put", objects, body, store.put, store.submit_put)

    def put_group(self) -> Call:
        store, how = self._home.store, self._put_how()
        if self._rng.random() < 0.5:
            base, state = content.based(self._rng)
            if self._rng.random() < 0.5:
                return self._put("put", [base], lambda given: store.put([base.key], given, **how))
            return self._put("put_group", [state], lambda given: store.put_group([state.key], given, base=base.key, **how))
        objects = content.groups(self._rng, 1)[0]
        return self._put("put_group", objects, lambda given: store.put_group([each.key for each in objects], given, **how))

    def put_pages(self) -> Call:
        store, how, rng = self._home.store, self._put_how(), self._rng
        pages = content.groups(rng, rng.choice((1, 3)))
        if rng.random() < 0.5:
            objects = [each for page in pages for each in page]

            def whole(way, given):
                return way([each.key for each in objects], given, **how)

            return self._put("put_pages", objects, whole, store.put_pages, store.submit_put_pages)
        # Parts of groups, complete with the other part.
        which = rng.randrange(2)
        parts, required = [page[which] for page in pages], [each.key for each in pages[0]]

        def body(way, given):
            return way([each.key for each in parts], given, required=required, **how)

        return self._put("put_pages in parts", parts, body, store.put_pages, store.submit_put_pages)

    def begin_group(self) -> Call:
        store, how, page = self._home.store, self._how(), content.groups(self._rng, 1)[0]
        return self._simple_call("begin_group", lambda _: self._home.hold((store.begin_group([each.key for each in page], **how), page)))

    def continue_group(self) -> Call:
        """Put objects of an open group, commit it, abort it, or drop it."""
        held = self._home.held(self._rng, tuple)
        if held is None:
            return self.begin_group()
        (group, page), how, what = held, self._put_how(), self._rng.random()
        if what < 0.6:
            objects = self._rng.choice((page, page[:1], page[1:]))
            return self._put("put of a group", objects, lambda given: group.put([each.key for each in objects], given, **how))
        if what < 0.7:
            return self._simple_call("missing of a group", lambda _: group.missing())
        if what < 0.9:
            return self._put("commit of a group", [], lambda _: group.commit(**how))
        return self._simple_call("abort of a group", lambda _: group.abort())

    # Pins, leases and views.

    def pin(self) -> Call:
        store, rng, timeout = self._home.store, self._rng, self._timeout()
        keys = [content.anything(rng).key for _ in range(rng.choice((1, 5)))]
        if rng.random() < 0.3:
            seconds = rng.choice((0, 0.001, 0.1))
            return self._simple_call("lease", lambda _: store.lease(keys, seconds, timeout=timeout))
        return self._simple_call("pin", lambda _: self._home.hold(store.pin(keys, timeout=timeout)))

    def let_go(self) -> Call:
        pin = self._home.held(self._rng, pagelith.Pin)
        if pin is None:
            return self.pin()
        if self._rng.random() < 0.5:
            return self._simple_call("release", lambda _: pin.release())
        return self._simple_call("is it held", lambda _: pin.held)

    def register(self) -> Call:
        store, held = self._home.store, self._home.held(self._rng, pagelith.Registration)
        if held is not None and self._rng.random() < 0.5:
            return self._simple_call("release of memory", lambda _: held.release())
        # Memory of which calls have views, or an object that is dropped as soon as it is released.
        memory = self._home.slots.memory if self._rng.random() < 0.5 else bytearray(self._rng.choice((100, 1 << 20)))
        return self._simple_call("register", lambda _: self._home.hold(store.register(memory)))

    def view(self) -> Call:
        """View objects, or check an earlier view again."""
        store, rng, timeout = self._home.store, self._rng, self._timeout()
        seen = self._home.held(rng, CheckedView)
        if seen is not None and rng.random() < 0.7:
            return self._simple_call("check of a view", lambda _: self._right(seen))
        objects = [content.anything(rng) for _ in range(rng.choice((1, 5)))]

        def check(views):
            for each, view in zip(objects, views, strict=True):
                if view is not None:
                    self._tally.count(f"view, {self._home.name}")
                    self._right(self._home.hold(CheckedView(each, view)))

        return self._simple_call("view", lambda _: store.view([each.key for each in objects], timeout=timeout), check)

    def _right(self, seen: "CheckedView") -> None:
        # In a store process, the bytes read are valid if the view is still held after the read.
        if bytes(seen.view.memory) != seen.object.content and seen.view.held:
            self._tally.fail(f"a view of other bytes {seen.object} {self._home.name}")

    # Removals and close.

    def remove(self) -> Call:
        store, rng, timeout = self._home.store, self._rng, self._timeout()
        keys = [content.anything(rng).key for _ in range(rng.choice((1, 5)))]
        return self._simple_call("remove", lambda _: store.remove(keys, timeout=timeout))

    def clear(self) -> Call:
        store, space, timeout = self._home.store, self._rng.choice(content.SPACES), self._timeout()
        return self._simple_call("clear", lambda _: store.clear(space, timeout=timeout))

    def flush(self) -> Call:
        store, timeout = self._home.store, self._timeout()
        return self._simple_call("flush", lambda _: store.flush(timeout=timeout))

    def look(self) -> Call:
        store, timeout = self._home.store, self._timeout()
        if self._rng.random() < 0.3:
            return self._simple_call("stats", lambda _: store.stats())

        def check(result):
            told, lost = result
            self._tally.count("events", len(told))
            self._tally.count("events lost", lost)

        return self._simple_call("take_events", lambda _: store.take_events(1000, timeout=timeout), check)

    def reopen(self) -> Call:
        return self._simple_call("reopen", lambda _: self._home.reopen(self._rng), whole=True)


_OFTEN = [
    (Actions.get, 400),
    (Actions.put, 200),
    (Actions.put_group, 50),
    (Actions.put_pages, 50),
    (Actions.begin_group, 25),
    (Actions.continue_group, 60),
    (Actions.view, 40),
    (Actions.prefetch, 20),
    (Actions.exists, 60),
    (Actions.exists_groups, 10),
    (Actions.pin, 20),
    (Actions.let_go, 20),
    (Actions.register, 10),
    (Actions.remove, 15),
    (Actions.clear, 1),
    (Actions.flush, 8),
    (Actions.look, 20),
    (Actions.reopen, 2),
]
_ACTIONS, _WEIGHTS = [action for action, _ in _OFTEN], [weight for _, weight in _OFTEN]
