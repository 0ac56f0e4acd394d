"""The behaviour that callers rely on, tested with the installed wheel. `python/check.sh` builds it
and runs these."""

import ctypes
import fcntl
import gc
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import threading
import types
import unittest
import weakref

import pagelith
from pagelith import shared

SPACE = pagelith.Namespace("test", dtype="bf16", page_tokens=64)
PAGE = 16 << 10


def key(n, **more):
    return pagelith.Key(SPACE, n.to_bytes(32, "little"), **more)


def content(n, length=PAGE):
    return bytes((n * 31 + i * 7) % 251 for i in range(256)) * (length // 256)


def config(directory=None, **dram):
    settings = {"dram": {"bytes": "8MiB", **dram}, "index": {"max_objects": 10000}}
    if directory is not None:
        settings["ssd"] = {"dirs": [os.path.join(directory, "store")], "bytes": "64MiB", "segment_bytes": "4MiB"}
    return settings


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def open(self, **dram):
        store = pagelith.Store(config(self.home.name, **dram))
        self.addCleanup(store.close)
        return store


    def assert_hints_are_followed(self, store):
        """A hint of every kind, in a store of 1 MiB without SSD."""
        keys = [key(n) for n in range(200)]
        kept, early = keys[:4], keys[100:104]
        self.assertTrue(all(store.put(keys[:60], [content(1)] * 60)))
        self.assertEqual(store.hint(kept, "retain", 3600), 4)
        self.assertEqual(store.hint(early, "retain", 3600), 0)
        self.assertEqual(store.hint(keys[4:6], "expected_back", 3600), 2)
        self.assertEqual(store.hint([*keys[50:52], keys[199]], "session_ended"), 2)
        for hint in ("demote", "low_priority", "high_priority"):
            self.assertEqual(store.hint(keys[52:53], hint), 1, hint)
        self.assertEqual(store.hint([], "demote"), 0)
        with self.assertRaisesRegex(pagelith.BusyError, "too much is pinned or leased"):
            store.hint(keys[10:40], "retain", 3600)
        self.assertTrue(all(store.put(keys[60:180], [content(1)] * 120)))
        self.assertEqual(store.exists([*kept, *early, *keys[4:6]]), [True] * 10)
        self.assertEqual(store.exists(keys[50:52]), [False] * 2)
        stats = store.stats()
        self.assertEqual((stats["hints_expected"], stats["hints_expected_followed"], stats["hints_ended_followed"] > 0), (1, 1, True))


class Events(Case):
    def test_events_are_returned_once(self):
        store = pagelith.Store({**config(self.home.name), "events": {"max": 100}})
        self.addCleanup(store.close)
        self.assertTrue(store.put([key(1)], [content(1)])[0])
        told, lost = store.take_events()
        self.assertEqual([(e.kind, e.tier, e.key, e.new, e.gone) for e in told[:1]], [("stored", "dram", key(1), True, False)])
        store.flush()
        told += store.take_events()[0]
        self.assertEqual([(e.kind, e.tier, e.key, e.new) for e in told[1:]], [("stored", "ssd", key(1), False)])
        self.assertEqual((store.remove([key(1)]), lost), (1, 0))
        told, _ = store.take_events()
        self.assertEqual([(e.kind, e.tier, e.gone) for e in told], [("removed", "ssd", False), ("removed", "dram", True)])
        store.clear(SPACE)
        (cleared,), _ = store.take_events()
        self.assertEqual((cleared.kind, cleared.tier, cleared.key, cleared.namespace), ("cleared", None, None, SPACE))
        self.assertEqual(store.take_events(), ([], 0))

    def test_untaken_events_are_dropped_and_counted(self):
        store = pagelith.Store({**config(), "events": {"max": 2}})
        self.addCleanup(store.close)
        store.put([key(n) for n in range(5)], [content(n) for n in range(5)])
        told, lost = store.take_events(1)
        self.assertEqual(([e.key for e in told], lost), ([key(3)], 3))
        told, lost = store.take_events()
        self.assertEqual(([e.key for e in told], lost), ([key(4)], 0))
        plain = self.open()
        plain.put([key(1)], [content(1)])
        self.assertEqual(plain.take_events(), ([], 0))


class Keys(unittest.TestCase):
    def test_key_has_its_fields(self):
        k = pagelith.Key(SPACE, b"\x07" * 32, pool="indexer", component="k", draft=True, shard="rank.tp1of4")
        self.assertEqual((k.pool, k.component, k.draft, k.shard), ("indexer", "k", True, "rank.tp1of4"))
        self.assertEqual((k.page, k.namespace), (b"\x07" * 32, SPACE))
        self.assertEqual(k, pagelith.Key(SPACE, b"\x07" * 32, pool="indexer", component="k", draft=True, shard="rank.tp1of4"))
        self.assertEqual(len({k, k.on_page(b"\x07" * 32), k.on_page("another")}), 2)

    def test_namespaces_differ_by_any_field(self):
        plain = pagelith.Namespace("m")
        others = [
            pagelith.Namespace("n"),
            pagelith.Namespace("m", tenant="t"),
            pagelith.Namespace("m", revision="r"),
            pagelith.Namespace("m", dtype="d"),
            pagelith.Namespace("m", page_tokens=1),
            pagelith.Namespace("m", layout="l"),
            pagelith.Namespace("m", layout_version=1),
            pagelith.Namespace("m", layer_split=[(0, 2), (2, 4)]),
            pagelith.Namespace("m", extra=[("lora", "x")]),
        ]
        self.assertEqual(len({plain, *others}), 1 + len(others))
        self.assertEqual(plain.id, pagelith.Namespace("m").id)

    def test_invalid_keys_are_refused_by_name(self):
        with self.assertRaisesRegex(pagelith.InvalidError, "32 bytes length=3"):
            pagelith.Key(SPACE, b"abc")
        with self.assertRaisesRegex(pagelith.InvalidError, 'shard="rank.tp4of4"'):
            pagelith.Key(SPACE, b"\0" * 32, shard="rank.tp4of4")
        with self.assertRaisesRegex(pagelith.InvalidError, "pool"):
            pagelith.Key(SPACE, b"\0" * 32, pool="no/slash")


class RoundTrips(Case):
    def test_bytes_are_read_from_memory_and_after_restart(self):
        store = self.open()
        keys = [key(n) for n in range(100)]
        put = store.put(keys, [content(n) for n in range(100)])
        self.assertEqual([p.state for p in put], ["stored"] * 100)
        self.assertTrue(all(put))
        for tier in ("dram", "ssd"):
            into = [bytearray(PAGE) for _ in keys]
            got = store.get(keys, into)
            self.assertEqual({(g.tier, g.bytes, g.cause, g.error) for g in got}, {(tier, PAGE, None, None)})
            self.assertEqual(into, [content(n) for n in range(100)])
            if tier == "dram":
                self.assertEqual(store.close().durable_objects, 100)
                store = self.open(promote="never")
        self.assertEqual([p.state for p in store.put(keys, [bytes(PAGE)] * 100)], ["present"] * 100)

    def test_miss_is_an_outcome(self):
        got = self.open().get([key(1)], [bytearray(10)])
        self.assertFalse(got[0])
        self.assertEqual((got[0].cause, got[0].tier, got[0].bytes, got[0].error), ("absent", None, 0, None))

    def test_load_that_is_slower_than_the_prefill_rate_is_a_miss(self):
        settings = {**config(self.home.name, bytes=0), "read": {"page_tokens": 64}}
        store = pagelith.Store(settings)
        self.addCleanup(store.close)
        keys = [key(n) for n in range(8)]
        self.assertTrue(all(store.put(keys, [content(1)] * 8)))
        store.flush()

        def causes(**rate):
            return {(g.tier, g.cause) for g in store.get(keys, [bytearray(PAGE) for _ in keys], **rate)}

        # The first load is measured.
        self.assertEqual(causes(prefill_tokens_per_s=10**9), {("ssd", None)})
        self.assertEqual(causes(prefill_tokens_per_s=10**9), {(None, "slow")})
        self.assertEqual(causes(prefill_tokens_per_s=1), {("ssd", None)})
        self.assertEqual(causes(), {("ssd", None)})
        batch = store.submit_get(keys, [bytearray(PAGE) for _ in keys], prefill_tokens_per_s=10**9)
        self.assertEqual({g.cause for g in batch.result(timeout=60)}, {"slow"})
        for wrong in (-1, 2**64):
            with self.assertRaisesRegex(pagelith.InvalidError, "^prefill_tokens_per_s must be a whole number"):
                causes(prefill_tokens_per_s=wrong)

    def test_memory_of_every_kind_is_accepted(self):
        store = self.open()
        whole = content(3)
        pool = (ctypes.c_char * PAGE).from_buffer_copy(whole)
        address = ctypes.addressof(pool)
        forms = [
            whole,
            bytearray(whole),
            memoryview(whole),
            memoryview(bytearray(whole)).cast("I"),
            pool,
            (address, PAGE),
            [(address, 1000), whole[1000:5000], (address + 5000, PAGE - 5000)],
            [whole[:1], b"", whole[1:]],
        ]
        keys = [key(n) for n in range(len(forms))]
        self.assertTrue(all(store.put(keys, forms)))
        for k in keys:
            scattered = [bytearray(100), bytearray(4096), bytearray(PAGE - 4196)]
            target = ctypes.create_string_buffer(PAGE)
            first, second = store.get([k, k], [scattered, (ctypes.addressof(target), PAGE)])
            self.assertTrue(first and second)
            self.assertEqual((b"".join(scattered), target.raw), (whole, whole))

    def test_byte_ranges_are_read(self):
        store = self.open()
        store.put([key(1)], [content(1)])
        part = bytearray(5000)
        whole = bytearray(PAGE)
        self.assertTrue(all(store.get([key(1), key(1)], [part, whole], ranges=[(1000, 6000), None])))
        self.assertEqual((part, whole), (content(1)[1000:6000], content(1)))
        with self.assertRaisesRegex(pagelith.InvalidError, "keys=1 ranges=2"):
            store.get([key(1)], [part], ranges=[None, None])

    def test_unusable_memory_is_refused_without_effect(self):
        store = self.open()
        store.put([key(1)], [content(1)])
        with self.assertRaises(BufferError):
            store.get([key(1)], [bytes(PAGE)])
        with self.assertRaisesRegex(TypeError, "not int"):
            store.put([key(2)], [5])
        with self.assertRaisesRegex(pagelith.InvalidError, "address=0x0"):
            store.put([key(2)], [(0, 10)])
        with self.assertRaisesRegex(pagelith.InvalidError, "keys=2 memories=1"):
            store.put([key(2), key(3)], [b"x"])
        twice = bytearray(2 * PAGE)
        with self.assertRaisesRegex(pagelith.InvalidError, "must not overlap"):
            store.get([key(1), key(1)], [memoryview(twice)[:PAGE], memoryview(twice)[PAGE - 1 : 2 * PAGE - 1]])
        halves = [memoryview(twice)[:PAGE], [memoryview(twice)[100:100], memoryview(twice)[200 : PAGE + 200]]]
        with self.assertRaisesRegex(pagelith.InvalidError, "must not overlap"):
            store.get([key(1), key(1)], halves)
        self.assertEqual(store.exists([key(1), key(2), key(3)]), [True, False, False])
        self.assertEqual(twice, bytes(2 * PAGE))

    def test_buffer_is_exported_only_during_call(self):
        store = self.open()
        for outcome in ("hit", "miss", "refused"):
            into = bytearray(PAGE)
            if outcome != "miss":
                store.put([key(1)], [content(1)])
            if outcome == "refused":
                with self.assertRaises(TypeError):
                    store.get([key(1), key(2)], [into, 5])
            else:
                store.get([key(1) if outcome == "hit" else key(9)], [into])
            # An exported bytearray cannot be resized.
            into.extend(b"more")

        class TrackedSource(bytearray):
            pass

        source = TrackedSource(content(2))
        gone = weakref.ref(source)
        store.put([key(2)], [source])
        del source
        gc.collect()
        self.assertIsNone(gone())


class Registered(Case):
    def test_registered_memory_gets_same_bytes_from_ssd(self):
        keys = [key(n) for n in range(64)]
        store = self.open()
        store.put(keys, [content(n, 4 * PAGE) for n in range(64)])
        store.close()
        # The memory is page-aligned: reads go directly into it.
        pool = mmap.mmap(-1, 64 * 4 * PAGE)
        rows = [memoryview(pool)[n * 4 * PAGE : (n + 1) * 4 * PAGE] for n in range(64)]
        store = pagelith.Store(config(self.home.name, promote="never"))
        self.addCleanup(store.close)
        with store.register(pool) as registration:
            self.assertEqual([outcome.tier for outcome in store.get(keys, rows)], ["ssd"] * 64)
            self.assertEqual(pool[:], b"".join(content(n, 4 * PAGE) for n in range(64)))
        registration.release()
        rows[0][:] = bytes(4 * PAGE)
        self.assertTrue(store.get(keys[:1], rows[:1])[0])
        self.assertEqual(pool[: 4 * PAGE], content(0, 4 * PAGE))

    def test_registered_buffer_is_exported_until_release(self):
        store, buffer = self.open(), bytearray(PAGE)
        registration = store.register(buffer)
        with self.assertRaises(BufferError):
            buffer.extend(b"more")
        store.close()
        registration.release()
        buffer.extend(b"more")
        with self.assertRaises(pagelith.ClosedError):
            store.register(buffer)

    def test_invalid_memory_is_refused(self):
        store = self.open()
        with self.assertRaises(BufferError):
            store.register(bytes(PAGE))
        with self.assertRaisesRegex(pagelith.InvalidError, "not a list"):
            store.register([bytearray(PAGE), bytearray(PAGE)])
        with self.assertRaisesRegex(pagelith.InvalidError, "not mapped in this process"):
            store.register((4096, 4096))


class Pins(Case):
    def test_pin_outliving_its_store_holds_nothing(self):
        store = self.open()
        store.put([key(1)], [content(1)])
        pin = store.pin([key(1)])
        store.close()
        # The files of the store are released, and the other store has its own pins.
        store = self.open()
        second = store.pin([key(1)])
        pin.release()
        self.assertEqual((pin.held, second.held, store.stats()["objects_pinned"]), (False, True, 1))


class Groups(Case):
    def test_group_in_one_call_is_complete_or_absent(self):
        store = self.open()
        page = [key(1, component=c) for c in ("k", "v")]
        self.assertEqual(store.put_group(page, [b"k" * 100, b"v" * 100]).state, "stored")
        self.assertEqual(store.exists(page), [True, True])
        self.assertEqual(store.remove(page[:1]), 1)
        self.assertEqual(store.exists(page), [False, False])

    def test_pages_in_one_call_are_each_complete_or_absent(self):
        store = self.open()
        first = [key(0, component=c) for c in ("k", "v")]
        pages = [(100 + n).to_bytes(32, "little") for n in range(5)]
        keys = [k for row in zip(*(k.on_pages(pages) for k in first)) for k in row]
        outcomes = store.put_pages(keys, [b"x" * 50] * 10)
        self.assertEqual([o.state for o in outcomes], ["stored"] * 5)
        self.assertTrue(all(store.exists(keys)))
        window = key(0, pool="swa")
        waiting = store.put_pages(window.on_pages([*pages[:2], b"?" * 32]), [b"w" * 10] * 3, base=first[0])
        self.assertEqual([o.state for o in waiting], ["stored", "stored", "waiting"])

    def test_parts_become_visible_with_last_part(self):
        store = self.open()
        pages = [(100 + n).to_bytes(32, "little") for n in range(5)]
        kv, indexer = key(0), key(0, pool="indexer")
        part = store.put_pages(indexer.on_pages(pages), [b"i" * 50] * 5, required=[kv, indexer])
        self.assertEqual([o.state for o in part], ["waiting"] * 5)
        self.assertFalse(any(store.exists(indexer.on_pages(pages))))
        rest = store.put_pages(kv.on_pages(pages), [b"k" * 50] * 5, required=[kv, indexer], wait=0.0)
        self.assertEqual([o.state for o in rest], ["stored"] * 5)
        self.assertTrue(all(store.exists(indexer.on_pages(pages))))
        with self.assertRaises(pagelith.InvalidError):
            store.put_pages([kv], [b"k"], required=[kv], base=kv)

    def test_group_in_several_calls_is_visible_after_commit(self):
        store = self.open()
        page = [key(1, component=c) for c in ("k", "v")]
        group = store.begin_group(page)
        self.assertEqual([p.state for p in group.put(page[:1], [b"k" * 100])], ["waiting"])
        self.assertEqual((group.missing(), group.commit().state), (page[1:], "waiting"))
        self.assertEqual(store.exists(page), [False, False])
        store.begin_group(page).put(page[1:], [b"v" * 100])
        self.assertEqual(group.commit().state, "stored")
        self.assertEqual(store.exists(page), [True, True])
        for call in (group.missing, group.commit, group.abort, lambda: group.put(page[:1], [b"k"])):
            with self.assertRaisesRegex(pagelith.UnavailableError, "group is closed"):
                call()
        self.assertEqual(store.stats()["groups_waiting"], 0)

    def test_attached_objects_are_visible_with_base(self):
        store = self.open()
        base, state = key(1), key(1, pool="mamba", component="ssm")
        self.assertEqual(store.put_group([state], [b"s" * 100], base=base).state, "waiting")
        self.assertEqual(store.exists([state]), [False])
        store.put([base], [b"k" * 100])
        self.assertEqual(store.exists([base, state]), [True, True])

    def test_exists_groups_returns_restorable_prefix(self):
        store = self.open()
        pages = [n.to_bytes(32, "little") for n in range(8)]
        for n in range(6):
            store.put([key(n)], [b"k" * 100])
        for n in (1, 3):
            store.put_group([key(n, pool="mamba")], [b"s" * 100], base=key(n))
        mamba = pagelith.PoolQuery.trailing_pages([key(0, pool="mamba")])
        found = store.exists_groups(pages, [key(0)], [mamba])
        self.assertEqual((found.anchor_pages, found.usable_pages, found.stops, found.pool_pages), (6, 4, [2, 4], [4]))
        self.assertEqual(store.exists_groups(pages, [key(0)]).usable_pages, 6)
        with self.assertRaises(pagelith.InvalidError):
            store.exists_groups(pages, [], [])


class Life(Case):
    def test_exists_remove_clear_pin_and_stats_work(self):
        store = self.open()
        keys = [key(n) for n in range(10)]
        store.put(keys, [b"x" * 100] * 10)
        self.assertEqual(store.exists_prefix([*keys[:5], key(99), *keys[5:]]), 5)
        with store.pin([*keys, key(99)]) as pin:
            self.assertEqual(pin.objects, 10)
        self.assertEqual(store.lease(keys[:3], 0.5), 3)
        self.assertEqual(store.remove(keys[:2]), 2)
        self.assertEqual(store.exists(keys), [False] * 2 + [True] * 8)
        self.assertGreaterEqual(store.clear(SPACE), 1)
        self.assertEqual(store.exists(keys), [False] * 10)
        self.assertEqual(store.stats()["puts_stored"], 10)

    def test_hints_decide_what_leaves_memory_first(self):
        store = pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}})
        self.addCleanup(store.close)
        self.assert_hints_are_followed(store)

    def test_prefetched_objects_are_in_memory(self):
        store = self.open(promote="never")
        keys = [key(n) for n in range(20)]
        self.assertTrue(all(store.put(keys, [content(n) for n in range(20)])))
        store.close()
        store = self.open(promote="never")
        self.assertEqual(store.prefetch([*keys[:10], key(99)], request=store.begin_request(), timeout=60), 10)
        while store.stats()["prefetch_waiting"]:
            pass
        into = [bytearray(PAGE) for _ in keys]
        self.assertEqual([got.tier for got in store.get(keys, into)], ["dram"] * 10 + ["ssd"] * 10)
        self.assertEqual(into, [content(n) for n in range(20)])
        self.assertEqual((store.prefetch(keys[:10]), store.stats()["prefetched"]), (0, 10))

    def test_views_show_objects_without_copy(self):
        store = self.open()
        keys = [key(n) for n in range(3)]
        store.put(keys, [content(n) for n in range(3)])
        views = store.view([*keys, key(99)])
        self.assertIsNone(views.pop())
        memories = [view.memory for view in views]
        self.assertEqual([(view.nbytes, view.held) for view in views], [(PAGE, True)] * 3)
        self.assertEqual((ctypes.string_at(views[0].address, PAGE), views[0].address % 4096), (content(0), 0))
        self.assertEqual({(m.readonly, m.format, m.nbytes) for m in memories}, {(True, "B", PAGE)})
        # The memory keeps its view alive, whatever else is dropped.
        del views
        self.assertEqual(store.remove(keys[:1]), 1)
        self.assertTrue(all(store.put([key(n) for n in range(100, 800)], [content(1)] * 700)))
        store.flush()
        self.assertEqual(memories, [content(n) for n in range(3)])
        self.assertGreaterEqual(store.stats()["readers"], 3)
        store.close()
        with self.assertRaises(pagelith.ClosedError):
            store.view(keys)
        # The store's files are released for the next one.
        with pagelith.Store(config(self.home.name)) as again:
            self.assertEqual(again.exists(keys), [False, True, True])
            self.assertEqual(memories, [content(n) for n in range(3)])

    def test_closed_store_raises_closed_error(self):
        store = self.open()
        store.close()
        self.assertIsNone(store.close())
        for call in (lambda: store.exists([key(1)]), store.stats, store.flush, lambda: store.put([key(1)], [b"x"])):
            with self.assertRaises(pagelith.ClosedError):
                call()

    def test_all_invalid_settings_are_in_one_error(self):
        with self.assertRaises(pagelith.InvalidError) as refused:
            pagelith.Store({"dram": {"bites": 1, "policy": "mru"}})
        self.assertIn("did you mean dram.bytes?", str(refused.exception))
        self.assertIn("dram.policy", str(refused.exception))

    def test_settings_file_is_read(self):
        path = os.path.join(self.home.name, "store.toml")
        with open(path, "w") as file:
            file.write('[dram]\nbytes = "8MiB"\n')
        with pagelith.Store(path) as store:
            self.assertTrue(store.put([key(1)], [b"x"])[0])
        with self.assertRaisesRegex(pagelith.InvalidError, ".toml or .json file"):
            pagelith.Store("store.yaml")
        with self.assertRaises(FileNotFoundError):
            pagelith.Store("absent.toml")

    def test_locked_directory_is_denied(self):
        self.open()
        with self.assertRaisesRegex(pagelith.DeniedError, "open elsewhere"):
            pagelith.Store(config(self.home.name))

    def test_full_store_is_busy_in_outcome(self):
        store = pagelith.Store(config(bytes="1MiB"))
        keys = [key(n) for n in range(200)]
        store.put(keys, [content(n) for n in range(200)])
        pin = store.pin([k for k, here in zip(keys, store.exists(keys)) if here])
        outcome = store.put([key(1000)], [content(1)], timeout=0)[0]
        self.assertEqual((bool(outcome), outcome.state), (False, "error"))
        self.assertIsInstance(outcome.error, pagelith.BusyError)
        pin.release()
        self.assertTrue(store.put([key(1000)], [content(1)])[0])
        store.close()

    def test_forked_child_gets_forked_error_and_exits(self):
        store = self.open()
        store.put([key(1)], [content(1)])
        pin = store.pin([key(1)])
        registration = store.register(bytearray(PAGE))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.exists([key(1)])
            except pagelith.ForkedError as error:
                status = 0 if f"opened_in={os.getppid()}" in str(error) else 2
            # The child drops objects that the parent must close.
            pin.release()
            registration.release()
            del store, pin, registration
            gc.collect()
            os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        into = bytearray(PAGE)
        self.assertTrue(store.get([key(1)], [into])[0])
        self.assertEqual(into, content(1))

    def test_other_threads_run_during_call(self):
        store = self.open()
        # A put waits while everything is pinned. If it held the GIL, it would end before anything
        # else ran.
        small = pagelith.Store(config(bytes="1MiB"))
        keys = [key(n) for n in range(64)]
        small.put(keys, [content(n) for n in range(64)])
        pin = small.pin(keys)
        begun, outcomes = threading.Event(), []

        def wait():
            begun.set()
            outcomes.extend(small.put([key(99)], [content(1)], timeout=30))

        waiting = threading.Thread(target=wait)
        waiting.start()
        begun.wait()
        for n in range(200):
            store.put([key(n)], [content(n)])
        self.assertEqual(outcomes, [])
        pin.release()
        waiting.join()
        self.assertEqual([outcome.state for outcome in outcomes], ["stored"])
        small.close()

    def test_concurrent_puts_and_gets_survive_close(self):
        store = self.open()
        wrong = []

        def work(thread):
            try:
                for n in range(thread, 400, 4):
                    store.put([key(n)], [content(n)])
                    into = bytearray(PAGE)
                    if store.get([key(n)], [into])[0] and into != content(n):
                        wrong.append(n)
            except pagelith.ClosedError:
                pass

        threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        threads[0].join()
        store.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class NotListening(Exception):
    """A store process ended before it listened; the argument is its output."""


class Process:
    """A store process, started by `pagelith serve`."""

    def __init__(self, listen, *flags):
        program = os.environ["STORE_PROGRAM"]
        dram = [] if "--dram" in flags else ["--dram", "64MiB"]
        self.said = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(
            [program, "serve", "--listen", listen, *dram, *flags],
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        line = self.child.stdout.readline()
        if not line.startswith("listening "):
            self.child.wait()
            self.said.seek(0)
            said = self.said.read()
            self.end()
            raise NotListening(said)
        self.address = line.removeprefix("listening ").strip()

    def end(self, how=signal.SIGTERM):
        self.child.send_signal(how)
        self.child.wait()
        self.child.stdout.close()
        self.said.close()

    def ended(self):
        if not self.said.closed:
            self.end()


class Relay:
    """Forwards connections to a store process, on threads of this process."""

    def __init__(self, address):
        host, port = address.removeprefix("tcp:").split(":")
        self.to, self.listener, self.ends = (host, int(port)), socket.create_server(("127.0.0.1", 0)), []
        self.address = f"tcp:127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            there = socket.create_connection(self.to)
            self.ends += [here, there]
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self.forward, args=pair, daemon=True).start()

    def forward(self, source, to):
        try:
            while data := source.recv(1 << 16):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        for end in (self.listener, *self.ends):
            end.close()


class Peers(Case):
    def test_embedded_store_uses_configured_peers(self):
        processes = [Process("unix:" + os.path.join(self.home.name, name)) for name in "ab"]
        for process in processes:
            self.addCleanup(process.ended)
        entries = [{"address": process.address, "name": name} for process, name in zip(processes, "ab")]
        settings = {**config(), "remote": {"peers": entries}}
        keys, values = [key(page) for page in range(40)], [content(page) for page in range(40)]
        with pagelith.Store(settings) as store:
            self.assertTrue(all(store.put(keys, values)))
            self.assertTrue(any(store.stats()["remote_stored"] == len(keys) for _ in range(1_000_000)))
        with pagelith.Store(settings) as store:
            landed = [bytearray(PAGE) for _ in keys]
            outcomes = store.get(keys, landed)
        self.assertEqual([outcome.tier for outcome in outcomes], ["remote"] * len(keys))
        self.assertEqual([bytes(value) for value in landed], values)
        # Each owns its share of the pages.
        for process in processes:
            with pagelith.Store.attach(process.address) as there:
                self.assertTrue(0 < sum(there.exists(keys)) < len(keys))

    def test_invalid_peers_are_refused(self):
        wrong = {"remote": {"peers": ["here", {"address": "unix:/a", "weight": "2"}]}}
        with self.assertRaisesRegex(pagelith.InvalidError, "entry 0 .* entry 1 "):
            pagelith.Store(wrong)


class Attached(Case):
    def serve(self, *flags):
        process = Process("unix:" + os.path.join(self.home.name, "socket"), *flags)
        self.addCleanup(process.ended)
        return process

    def serve_again(self, *flags):
        """As `serve`, in the directory of a killed process, whose lock lasts until its last write
        has ended."""
        for _ in range(1000):
            try:
                return self.serve(*flags)
            except NotListening as why:
                if "store is open elsewhere" not in str(why):
                    raise
        raise AssertionError("the killed process's lock stays")

    def test_attached_store_behaves_like_embedded(self):
        process = self.serve()
        keys, pages = [key(n) for n in range(50)], [content(n) for n in range(50)]
        with pagelith.Store.attach(process.address) as writer, pagelith.Store.attach(process.address) as reader:
            self.assertTrue(all(writer.put(keys, pages, request=writer.begin_request())))
            self.assertEqual(reader.exists_prefix([*keys, key(99)]), 50)
            into = [bytearray(PAGE) for _ in keys]
            self.assertEqual({(g.tier, g.bytes) for g in reader.get(keys, into)}, {("dram", PAGE)})
            self.assertEqual(into, pages)
            part = bytearray(100)
            self.assertTrue(reader.get(keys[:1], [part], ranges=[(50, 150)])[0])
            self.assertEqual(part, pages[0][50:150])
            page = [key(100, component=c) for c in ("k", "v")]
            self.assertEqual(writer.put_group(page, [b"k" * 100, b"v" * 100]).state, "stored")
            self.assertEqual(writer.put_group([key(100, pool="mamba")], [b"s"], base=page[0]).state, "stored")
            mamba = pagelith.PoolQuery.trailing_pages([key(0, pool="mamba")])
            found = reader.exists_groups([page[0].page], [key(0, component="k")], [mamba])
            self.assertEqual((found.usable_pages, found.stops), (1, [1]))
            # All objects are in memory.
            self.assertEqual(reader.prefetch(keys), 0)
            self.assertEqual(reader.remove(keys[:5]), 5)
            self.assertEqual(writer.exists(keys[:6]), [False] * 5 + [True])
            self.assertEqual(reader.stats()["puts_stored"], 53)
            writer.clear(SPACE)
            self.assertEqual(reader.exists(keys), [False] * 50)
            self.assertIsNone(writer.close())

    def test_attached_group_in_several_calls_works(self):
        process = self.serve()
        page, other = ([key(n, component=c) for c in ("k", "v")] for n in (1, 2))
        with pagelith.Store.attach(process.address) as store, pagelith.Store.attach(process.address) as second:
            group = store.begin_group(page)
            self.assertEqual([p.state for p in group.put(page[:1], [b"k" * 100])], ["waiting"])
            self.assertEqual((group.missing(), group.commit().state), (page[1:], "waiting"))
            self.assertEqual(store.exists(page), [False, False])
            joined = second.begin_group(page[::-1])
            self.assertEqual(joined.missing(), page[1:])
            self.assertEqual([p.state for p in joined.put(page, [b"k" * 100, b"v" * 100])], ["present", "waiting"])
            wrong = group.put([*page[1:], other[0]], [b"v" * 99, b"x"])
            self.assertEqual([type(p.error) for p in wrong], [pagelith.InvalidError] * 2)
            self.assertEqual(group.commit().state, "stored")
            self.assertEqual(second.exists(page), [True, True])
            for call in (group.missing, group.commit, group.abort, lambda: group.put(page[:1], [b"k" * 100])):
                with self.assertRaisesRegex(pagelith.UnavailableError, "group is closed"):
                    call()
            # A client that joined the group finds it committed.
            self.assertEqual((joined.missing(), joined.put(page[:1], [b"k" * 100])[0].state), ([], "present"))
            self.assertEqual(joined.commit().state, "present")
            with self.assertRaisesRegex(pagelith.UnavailableError, "group is closed"):
                joined.missing()
            given_up = store.begin_group(other)
            given_up.put(other[:1], [b"k" * 100])
            given_up.abort()
            with self.assertRaisesRegex(pagelith.UnavailableError, "group is closed"):
                given_up.put(other[:1], [b"k" * 100])
            self.assertEqual(store.begin_group(other).missing(), other)
            self.assertEqual(store.stats()["groups_waiting"], 1)
            # As in an embedded store, dropping the group leaves it open to others.
            store.begin_group(other).put(other[:1], [b"k" * 100])
            del given_up, group
            gc.collect()
            kept = second.begin_group(other)
            self.assertEqual(kept.missing(), other[1:])
            first = store.begin_group([key(3)])
            with self.assertRaises(pagelith.InvalidError):
                store.begin_group([])
            with self.assertRaisesRegex(pagelith.InvalidError, "in a group of other objects"):
                store.begin_group(page[:1])
        with self.assertRaises(pagelith.ClosedError):
            first.missing()
        with pagelith.Store.attach(process.address) as store:
            # Groups end with the clients that began them, even if objects that named them are kept.
            self.assertTrue(any(store.stats()["groups_waiting"] == 0 for _ in range(1_000_000)))
            self.assertEqual(store.begin_group(other).missing(), other)
            group = store.begin_group(other)
            group.put(other[:1], [b"k" * 100])
            process.end(signal.SIGKILL)
            os.unlink(process.address.removeprefix("unix:"))
            process = self.serve()
            for call in (group.missing, group.commit, lambda: group.put(other[1:], [b"v" * 100])):
                with self.assertRaises(pagelith.UnavailableError):
                    call()
            self.assertTrue(all(p for p in [store.put_group(other, [b"k" * 100, b"v" * 100])]))

    def test_attached_views_show_objects_without_copy(self):
        process = self.serve("--dram", "8MiB", "--ssd", "0")
        keys = [key(n) for n in range(10)]
        with pagelith.Store.attach(process.address) as store:
            store.put(keys, [content(n) for n in range(10)])
            views = store.view([*keys, key(99)])
            self.assertIsNone(views.pop())
            self.assertEqual([view.memory for view in views], [content(n) for n in range(10)])
            self.assertEqual({view.held for view in views}, {True})
            self.assertEqual((store.stats()["readers"], store.remove(keys)), (10, 10))
            self.assertTrue(all(store.put([key(n) for n in range(100, 800)], [content(1)] * 700)))
            self.assertEqual([view.memory for view in views], [content(n) for n in range(10)])
            memory = views[3].memory
            del views
            self.assertEqual((store.stats()["readers"], memory), (10, content(3)))
            del memory
            self.assertEqual(store.stats()["readers"], 0)
            view = store.view([key(799)])[0]
            process.end()
            self.assertFalse(view.held)
            self.assertEqual(view.memory.nbytes, PAGE)
        tcp = Process("tcp:127.0.0.1:0")
        self.addCleanup(tcp.ended)
        with pagelith.Store.attach(tcp.address.replace("127.0.0.1", "localhost")) as store:
            store.put(keys[:1], [content(0)])
            with self.assertRaisesRegex(pagelith.IncompatibleError, "shares no memory"):
                store.view(keys[:1])

    def test_attached_pin_holds_until_release(self):
        process = self.serve("--dram", "1MiB", "--ssd", "0")
        pinned, others = [key(n) for n in range(10)], [key(n) for n in range(100, 300)]
        with pagelith.Store.attach(process.address) as store:
            store.put(pinned, [content(n) for n in range(10)])
            with pagelith.Store.attach(process.address) as leaving:
                left = leaving.pin(pinned)
            # The pin ended with its client, even if the object is kept.
            self.assertTrue(any(store.stats()["objects_pinned"] == 0 for _ in range(1_000_000)))
            self.assertFalse(left.held)
            left.release()
            with store.pin([*pinned, key(99)]) as pin:
                self.assertEqual((pin.objects, pin.held, store.stats()["objects_pinned"]), (10, True, 10))
                self.assertTrue(all(store.put(others, [content(1)] * 200)))
                self.assertEqual(store.exists(pinned), [True] * 10)
            self.assertEqual((pin.held, store.stats()["objects_pinned"]), (False, 0))
            self.assertTrue(all(store.put([key(n) for n in range(300, 500)], [content(1)] * 200)))
            self.assertEqual(store.exists(pinned), [False] * 10)
            store.put(pinned, [content(n) for n in range(10)])
            self.assertEqual(store.lease([*pinned, key(99)], 3600), 10)
            self.assertTrue(all(store.put(others, [content(1)] * 200)))
            self.assertEqual(store.exists(pinned), [True] * 10)
            with self.assertRaisesRegex(pagelith.InvalidError, "too long"):
                store.lease(pinned, 10**6)
            with self.assertRaisesRegex(pagelith.InvalidError, "hint is too long"):
                store.hint(pinned, "retain", 10**6)
            gone = store.pin(pinned)
            process.end()
            self.assertFalse(gone.held)
            gone.release()
            for call in (lambda: store.pin(pinned, timeout=0.01), lambda: store.lease(pinned, 1, timeout=0.01)):
                with self.assertRaises(pagelith.UnavailableError):
                    call()

    def test_dropped_pin_leaves_other_threads_running(self):
        tcp, pinned = Process("tcp:127.0.0.1:0"), [key(n) for n in range(10)]
        self.addCleanup(tcp.ended)
        relay = Relay(tcp.address)
        self.addCleanup(relay.close)
        with pagelith.Store.attach(relay.address) as store:
            store.put(pinned, [content(n) for n in range(10)])
            kept, pin = store.pin(pinned[:1]), store.pin(pinned)
            del pin
            # A thread of this process has forwarded the release meanwhile: the link was not given up.
            self.assertTrue(kept.held)

    def test_hints_decide_what_leaves_memory_first(self):
        process = self.serve("--dram", "1MiB", "--ssd", "0")
        with pagelith.Store.attach(process.address) as store:
            self.assert_hints_are_followed(store)

    def test_shared_memory_is_put_without_transfer(self):
        process = self.serve()
        fd, other = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), os.memfd_create("other")
        self.addCleanup(os.close, fd)
        self.addCleanup(os.close, other)
        for each in (fd, other):
            os.ftruncate(each, 8 * PAGE)
        pool, elsewhere = mmap.mmap(fd, 8 * PAGE), mmap.mmap(fd, 8 * PAGE, mmap.MAP_PRIVATE)
        # A private mapping is not shared, although its file is.
        lies = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (pool, elsewhere)]
        (found,) = shared.mappings([(at, 8 * PAGE) for at in lies])
        address, length = found.address, found.length
        self.assertEqual((address, length, found.is_of(fd), found.is_of(other)), (lies[0], 8 * PAGE, True, False))
        keys, pages = [key(n) for n in range(8)], [content(n) for n in range(8)]
        pool[:] = elsewhere[:] = b"".join(pages)
        slices = [(address + n * PAGE, PAGE) for n in range(8)]
        with pagelith.Store.attach(process.address) as store:
            store.share(fd, address, length)
            self.assertEqual(fcntl.fcntl(fd, fcntl.F_GET_SEALS), fcntl.F_SEAL_SHRINK)
            self.assertEqual([o.state for o in store.put(keys[:4], slices[:4])], ["stored"] * 4)
            into = [bytearray(PAGE) for _ in range(4)]
            self.assertTrue(all(store.get(keys[:4], into)))
            self.assertEqual(into, pages[:4])
        with pagelith.Store.attach(process.address) as store:
            # The named file has other bytes than the memory: the store compared them, and stored
            # none.
            store.share(other, address, length)
            self.assertEqual([o.state for o in store.put(keys[4:], slices[4:], timeout=5)], ["error"] * 4)
            self.assertEqual(store.exists(keys), [True] * 4 + [False] * 4)
            with self.assertRaisesRegex(pagelith.InvalidError, "not a descriptor"):
                store.share(12345, address, length)
            with self.assertRaisesRegex(pagelith.InvalidError, "memory is shorter than length, or fd is not a memfd"):
                store.share(fd, address, length + 1)

    def test_pools_beyond_mapping_limit_are_sent(self):
        process = self.serve()
        fds = [os.memfd_create(f"pool {n}") for n in range(34)]
        for fd in fds:
            self.addCleanup(os.close, fd)
            os.ftruncate(fd, PAGE)
        pools = [mmap.mmap(fd, PAGE) for fd in fds]
        for n, pool in enumerate(pools):
            pool[:] = content(n)
        lies = [(ctypes.addressof(ctypes.c_char.from_buffer(pool)), PAGE) for pool in pools]
        keys = [key(n) for n in range(34)]
        with pagelith.Store.attach(process.address) as store:
            with self.assertLogs("pagelith.shared", "WARNING") as logs:
                # Memory that is shared already needs no further mapping.
                self.assertEqual([shared.share(store, lies) for _ in range(2)], [32, 32])
            self.assertEqual(len(logs.output), 4)
            self.assertTrue(all(store.put(keys, pools)))
            into = [bytearray(PAGE) for _ in keys]
            self.assertTrue(all(store.get(keys, into)))
            self.assertEqual(into, [content(n) for n in range(34)])

    def test_dead_store_is_in_outcomes_and_restarted_one_is_used(self):
        disk = ["--dir", os.path.join(self.home.name, "disk"), "--ssd", "64MiB"]
        process = self.serve(*disk)
        keys, pages = [key(n) for n in range(20)], [content(n) for n in range(20)]
        with pagelith.Store.attach(process.address) as store:
            store.put(keys, pages)
            store.flush()
            process.end(signal.SIGKILL)
            into = [bytearray(PAGE) for _ in keys]
            got = store.get(keys, into, timeout=60)
            self.assertEqual({type(g.error) for g in got}, {pagelith.UnavailableError})
            with self.assertRaises(pagelith.UnavailableError):
                store.exists(keys, timeout=60)
            os.unlink(process.address.removeprefix("unix:"))
            self.serve_again(*disk)
            # After three failures it is not contacted for a second.
            self.assertTrue(any(all(store.get(keys, into)) for _ in range(1_000_000)))
            self.assertEqual(into, pages)

    def test_missing_store_process_is_reported(self):
        with self.assertRaisesRegex(pagelith.PagelithError, "attach"):
            pagelith.Store.attach("unix:" + os.path.join(self.home.name, "nothing"))
        with self.assertRaises(pagelith.InvalidError):
            pagelith.Store.attach("http://localhost")
        with self.assertRaisesRegex(pagelith.UnavailableError, "host=no-such-host.invalid"):
            pagelith.Store.attach("tcp:no-such-host.invalid:7411")

    def test_required_key_is_checked(self):
        keys = os.path.join(self.home.name, "keys.toml")
        with open(keys, "w") as file:
            file.write(f'[[key]]\nname = "python"\nsecret = "{"5a" * 32}"\n')
        os.chmod(keys, 0o600)
        process = self.serve("--keys", keys)
        with pagelith.Store.attach(process.address, key=("python", b"\x5a" * 32)) as store:
            self.assertTrue(store.put([key(1)], [b"x"])[0])
        for wrong in (("python", b"\x5b" * 32), ("other", b"\x5a" * 32)):
            with self.assertRaises(pagelith.DeniedError):
                pagelith.Store.attach(process.address, key=wrong)


if __name__ == "__main__":
    unittest.main()
