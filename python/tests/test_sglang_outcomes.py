"""The adapter for SGLang, with every combination of outcomes of a page's objects: a page is read if
all of its objects are."""

import ctypes
import unittest

from outcome_stand_ins import STATES, ScriptedStore, combinations, is_there, whole
from test_sglang_adapter import Case, MHATokenToKVPoolHost, Pool, Transfer, keys, slots

import pagelith


class Outcomes(Case):
    def backend(self, anchor, sidecars=(), **how):
        backend = self.open(anchor, sidecars, **how)
        self.addCleanup(backend.close)
        backend._store = ScriptedStore(backend._store)
        return backend

    def objects(self, backend, pool, page):
        return [key.on_page(bytes.fromhex(page)) for key in backend._names.keys[pool]]

    def test_page_is_read_if_all_objects_are_read(self):
        pool, pages = MHATokenToKVPoolHost(), keys(2)
        backend = self.backend(pool)
        for page in range(2):
            pool.write(page, f"page {page}")
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [True, True])
        each = [one for page in pages for one in self.objects(backend, "kv", page)]
        self.assertEqual(len(each), 4)
        for ends in combinations(4):
            backend._store.ends = dict(zip(each, ends, strict=True))
            came = [whole(ends[:2]), whole(ends[2:])]
            self.assertEqual(backend.batch_get_v1(pages, slots(10, 2)), came, ends)
            for page in range(2):
                if came[page]:
                    self.assertEqual(pool.read(10 + page), pool.read(page), ends)

    def test_sidecar_page_is_read_if_all_objects_are_read(self):
        # A draft with heads has two objects per page, as its target has.
        indexer, draft, pages = Pool(length=500), MHATokenToKVPoolHost(length=200), keys(2)
        backend = self.backend(MHATokenToKVPoolHost(), [("indexer", indexer), ("draft", draft)])
        both = [Transfer("indexer", pages, 0), Transfer("draft", pages, 0)]
        self.assertEqual(backend.batch_set_v2(both), {"indexer": [True] * 2, "draft": [True] * 2})
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [True] * 2)
        of = [[*self.objects(backend, "indexer", page), *self.objects(backend, "draft", page)] for page in pages]
        every = list(combinations(3))
        # The other page has different outcomes each time.
        for first, second in zip(every, reversed(every), strict=True):
            backend._store.ends = dict(zip([*of[0], *of[1]], [*first, *second], strict=True))
            got = backend.batch_get_v2([Transfer("indexer", pages, 10), Transfer("draft", pages, 10)])
            came = {"indexer": [whole(first[:1]), whole(second[:1])], "draft": [whole(first[1:]), whole(second[1:])]}
            self.assertEqual(got, came, (first, second))

    def test_incompletely_read_page_is_not_reported(self):
        pool, pages = MHATokenToKVPoolHost(), keys(1)
        backend = self.backend(pool)
        backend.batch_set_v1(pages, slots(0, 1))
        told = []
        backend._listening.read = lambda found: told.extend(key.page for key, outcome in found if outcome)
        first, second = self.objects(backend, "kv", pages[0])
        for ends in combinations(2):
            told.clear()
            backend._store.ends = {first: ends[0], second: ends[1]}
            backend.batch_get_v1(pages, slots(10, 1))
            self.assertEqual(len(told), int(whole(ends)), ends)

    def test_page_is_written_if_stored_and_sidecar_also_if_waiting(self):
        backend = self.backend(MHATokenToKVPoolHost(), [("indexer", Pool(length=500))])
        for states in combinations(2, STATES):
            pages = keys(2, str(states))
            of = lambda pool: [self.objects(backend, pool, page)[0] for page in pages]  # noqa: B023, E731
            backend._store.states = dict(zip(of("indexer"), states, strict=True))
            said = backend.batch_set_v2([Transfer("indexer", pages, 0)])
            self.assertEqual(said, {"indexer": [is_there(state) or state == "waiting" for state in states]}, states)
            backend._store.states = dict(zip(of("kv"), states, strict=True))
            # If a page's sidecar was refused, none of the page is put.
            came = [is_there(state) and ok for state, ok in zip(states, said["indexer"], strict=True)]
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), came, states)

    def test_failed_call_reads_nothing(self):
        pool, pages = MHATokenToKVPoolHost(), keys(2)
        backend = self.backend(pool)
        backend.batch_set_v1(pages, slots(0, 2))

        def fail(*given, **how):
            raise pagelith.UnavailableError("the store process does not answer")

        backend._store.get = fail
        with self.assertLogs("pagelith.sglang.hicache", "WARNING"):
            self.assertEqual(backend.batch_get_v1(pages, slots(10, 2)), [False] * 2)

    def test_flat_page_is_read_if_object_is_read(self):
        pool, pages = Pool(), keys(2)
        backend = self.backend(pool, extra={"interface_v1": 0})

        class Page:
            device = type("", (), {"type": "cpu"})

            def __init__(self, at):
                self.at = at

            def is_contiguous(self):
                return True

            def data_ptr(self):
                return ctypes.addressof(pool.kv_buffer) + self.at * pool.length

            def numel(self):
                return pool.length

            def element_size(self):
                return 1

        self.assertTrue(backend.batch_set(pages, [Page(0), Page(1)]))
        each = [one for page in pages for one in self.objects(backend, "kv", page)]
        for ends in combinations(2):
            backend._store.ends = dict(zip(each, ends, strict=True))
            into = [Page(10), Page(11)]
            self.assertEqual(backend.batch_get(pages, into), [page if end == "hit" else None for page, end in zip(into, ends, strict=True)], ends)


if __name__ == "__main__":
    unittest.main()
