"""The L2 adapter for LMCache, with stand-ins for the classes of LMCache that it uses, so that it is
tested wherever the wheel is built. Tests under LMCache itself are in `python/clients/`.
"""

import logging
import os
import signal
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

from lmcache_stand_ins import BF16, FP16, SHAPE, SIZE, UINT8, Memory, ObjectKey, keys, layouts, signals, until
from test_store import Process

import pagelith
from pagelith.lmcache import PagelithL2Adapter
from pagelith.lmcache.locks import Locks
from pagelith.lmcache.pins import Pins
from pagelith.lmcache.settings import Settings


def stop(process):
    """Returns when all threads of the process are stopped: `kill` returns earlier, and a thread on
    a CPU may still respond."""
    process.child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.child.pid, os.WSTOPPED)


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def adapter(self, ssd="128MiB", dram="32MiB", **given):
        # Tests evict by newer objects: policies that keep what was used more than once would not.
        store = {"dram": {"bytes": dram, "policy": "lru"}, "index": {"max_objects": 20000}}
        if ssd != "0":
            directory = os.path.join(self.home.name, "ssd")
            store["ssd"] = {"dirs": [directory], "bytes": ssd, "segment_bytes": "4MiB", "policy": "fifo"}
        adapter = PagelithL2Adapter({"store": store, "revision": "weights-1", **given})
        self.addCleanup(adapter.close)
        return adapter

    def store(self, adapter, chunks, objects):
        """The (success, bytes) of a store task."""
        task = adapter.submit_store_task(chunks, objects)
        return until(lambda: adapter.pop_completed_store_tasks().get(task)).said

    def look(self, adapter, chunks, told=None):
        """The bits of a lookup; the found objects stay locked."""
        task = adapter.submit_lookup_and_lock_task(chunks, layouts() if told is None else told)
        return until(lambda: adapter.query_lookup_and_lock_result(task)).bits

    def load(self, adapter, chunks, objects):
        task = adapter.submit_load_task(chunks, objects)
        return until(lambda: adapter.query_load_result(task)).bits

    def bytes_of(self, objects):
        return [memory.buffer.raw for memory in objects]


class Adapter(Case):
    # Models.

    def test_adapter_requires_revision_and_finds_nothing_of_another(self):
        with self.assertRaisesRegex(ValueError, "adapter_params.*the model's configuration, its weights.*set 'revision' to a text"):
            self.adapter(revision="")
        chunks = keys(1)
        for revision, here in (("weights-1", 0), ("weights-2", 0), ("weights-1", 1)):
            adapter = self.adapter(revision=revision)
            self.assertEqual(self.look(adapter, chunks), [here])
            self.store(adapter, chunks, [Memory(0)])
            adapter.close()

    # Tasks.

    def test_task_is_reported_once_and_next_process_reads_stored_objects(self):
        adapter, chunks = self.adapter(), keys(500)
        stored = [Memory(n) for n in range(500)]
        descriptors = adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()
        self.assertEqual(len(set(descriptors)), 3)
        tasks = [adapter.submit_store_task(chunks[at : at + 100], stored[at : at + 100]) for at in range(0, 500, 100)]
        said = {}
        until(lambda: said.update(adapter.pop_completed_store_tasks()) or (len(said) == 5 or None))
        self.assertEqual({task: result.said for task, result in said.items()}, dict.fromkeys(tasks, (True, 100 * SIZE)))
        self.assertEqual(adapter.pop_completed_store_tasks(), {})
        self.assertEqual([signals(fd) for fd in descriptors], [5, 0, 0])
        look = adapter.submit_lookup_and_lock_task(chunks[:3], layouts())
        self.assertEqual(until(lambda: adapter.query_lookup_and_lock_result(look)).bits, [1] * 3)
        self.assertIsNone(adapter.query_lookup_and_lock_result(look))
        self.assertEqual([signals(fd) for fd in descriptors], [0, 1, 0])
        adapter.close()
        again = self.adapter()
        into = [Memory() for _ in chunks]
        self.assertEqual(self.look(again, chunks), [1] * 500)
        load = again.submit_load_task(chunks, into)
        self.assertEqual(until(lambda: again.query_load_result(load)).bits, [1] * 500)
        self.assertIsNone(again.query_load_result(load))
        self.assertEqual(signals(again.get_load_event_fd()), 1)
        self.assertEqual(self.bytes_of(into), self.bytes_of(stored))

    def test_empty_or_too_large_object_fails_alone(self):
        adapter, chunks = self.adapter(ssd="0"), keys(4)
        # Each in a separate put, before those that can be stored.
        objects = [Memory(None, shapes=((40 << 20,),)), Memory(None, shapes=((40 << 20,),)), Memory(0, shapes=((0,),)), Memory(3)]
        with self.assertLogs("pagelith.lmcache.adapter", "WARNING") as said:
            self.assertEqual(self.store(adapter, chunks, objects), (False, SIZE))
        self.assertIn("object is too large", said.output[0])
        self.assertEqual(self.look(adapter, chunks[3:]), [1])
        self.assertEqual(self.load(adapter, chunks, [*objects[:3], Memory()]), [0, 0, 0, 1])

    def test_repeated_key_is_stored_once(self):
        adapter, (chunk,) = self.adapter(), keys(1)
        self.assertEqual(self.store(adapter, [chunk, chunk], [Memory(1), Memory(1)])[0], True)
        into = [Memory(), Memory()]
        self.assertEqual(self.load(adapter, [chunk, chunk], into), [1, 1])
        self.assertEqual(self.bytes_of(into), self.bytes_of([Memory(1)]) * 2)

    def test_calls_do_not_block_and_lookups_do_not_wait_for_loads(self):
        adapter, chunks = self.adapter(), keys(2)
        self.store(adapter, chunks, [Memory(0), Memory(1)])
        gate, real = threading.Event(), adapter._store
        self.addCleanup(gate.set)
        held = lambda call: lambda *given, **named: (gate.wait(30), call(*given, **named))[1]  # noqa: E731
        adapter._store = types.SimpleNamespace(
            get=held(real.get), put=held(real.put), exists=real.exists, pin=real.pin, remove=real.remove, close=real.close
        )
        started = time.monotonic()
        loads = [adapter.submit_load_task(chunks, [Memory(), Memory()]) for _ in range(50)]
        adapter.submit_store_task(keys(1, of="other"), [Memory(3)])
        adapter.submit_unlock(chunks)
        self.assertLess(time.monotonic() - started, 25)
        self.assertEqual(self.look(adapter, chunks), [1, 1])
        self.assertIsNone(adapter.query_load_result(loads[0]))
        gate.set()
        self.assertEqual([until(lambda: adapter.query_load_result(load)).bits for load in loads], [[1, 1]] * 50)

    def test_close_finishes_submitted_tasks_and_fails_later_ones(self):
        adapter, chunks = self.adapter(), keys(400)
        stored = [Memory(n) for n in range(400)]
        for at in range(0, 400, 10):
            adapter.submit_store_task(chunks[at : at + 10], stored[at : at + 10])
        adapter.close()
        self.assertEqual({result.said for result in adapter.pop_completed_store_tasks().values()}, {(True, 10 * SIZE)})
        late = adapter.submit_load_task(chunks[:2], [Memory(), Memory()])
        self.assertEqual(adapter.query_load_result(late).bits, [0, 0])
        again, into = self.adapter(), [Memory() for _ in chunks]
        self.assertEqual(self.load(again, chunks, into), [1] * 400)
        self.assertEqual(self.bytes_of(into), self.bytes_of(stored))

    # Lookups.

    def test_load_reports_each_object_and_failed_ones_are_misses(self):
        adapter, chunks = self.adapter(), keys(1500)
        here = [at for at in range(1500) if at % 3 != 1]
        stored = {at: Memory(at) for at in here}
        self.assertEqual(self.store(adapter, [chunks[at] for at in here], list(stored.values())), (True, len(here) * SIZE))
        into = [Memory("before") for _ in chunks]
        self.assertEqual(self.load(adapter, chunks, into), [int(at % 3 != 1) for at in range(1500)])
        for at, memory in enumerate(into):
            self.assertEqual(memory.buffer.raw, stored[at].buffer.raw if at in stored else Memory("before").buffer.raw)
        # The store still has these objects, but a load of them failed.
        with self.assertLogs("pagelith.lmcache", "ERROR"):
            self.assertEqual(self.load(adapter, chunks[2:4], [into[0], into[0]]), [0, 0])
        self.assertEqual(self.look(adapter, chunks[:5]), [1, 0, 0, 0, 0])
        # Failed objects are found again once they were computed and stored again.
        self.assertEqual(self.store(adapter, chunks[1:3], [Memory(1), Memory(2)]), (True, 2 * SIZE))
        self.assertEqual(self.look(adapter, chunks[:5]), [1, 1, 1, 0, 0])

    def test_any_difference_is_a_miss_and_memory_is_unchanged(self):
        adapter, (chunk,) = self.adapter(), keys(1)
        self.store(adapter, [chunk], [Memory("it")])
        self.assertEqual(self.look(adapter, [chunk]), [1])
        for field in ({"model_name": "b"}, {"kv_rank": 0x01010101}, {"object_group_id": 1}, {"cache_salt": "user"}):
            (other,) = keys(1, **field)
            self.assertEqual(self.look(adapter, [other], {**layouts(), **layouts(group=1)}), [0], field)
            into = Memory("before")
            self.assertEqual(self.load(adapter, [other], [into]), [0], field)
            self.assertEqual(into.buffer.raw, Memory("before").buffer.raw)
        # Equal lengths with another type or shape, or in two tensors; and longer and shorter ones.
        half, more, fewer = (2, 2, 64, 8), (2, 4, 64, 16), (2, 4, 64, 4)
        others = [([SHAPE], [FP16]), ([(4, 2, 64, 8)], [BF16]), ([half, half], [BF16, BF16]), ([more], [BF16]), ([fewer], [BF16])]
        for shapes, dtypes in others:
            self.assertEqual(self.look(adapter, [chunk], layouts(shapes, dtypes)), [0], (shapes, dtypes))
            into = Memory("before", shapes, dtypes)
            self.assertEqual(self.load(adapter, [chunk], [into]), [0], (shapes, dtypes))
            self.assertEqual(into.buffer.raw, Memory("before", shapes, dtypes).buffer.raw)
        into = Memory()
        self.assertEqual(self.load(adapter, [chunk], [into]), [1])
        self.assertEqual(into.buffer.raw, Memory("it").buffer.raw)
        adapter.close()
        for settings in ({"revision": "2"}, {"tenant": "another"}):
            other = self.adapter(**settings)
            self.assertEqual(self.look(other, [chunk]), [0], settings)
            other.close()

    def test_task_may_mix_ranks_groups_and_salts(self):
        adapter, tall = self.adapter(), (2, 4, 64, 16)
        fields = [{"kv_rank": rank, "object_group_id": group, "cache_salt": salt} for rank in (1, 2) for group in (0, 1) for salt in ("", "user")]
        mixed = [key for field in fields for key in keys(2, **field)]
        memory = lambda at, seed=None: Memory(seed, (tall if mixed[at].object_group_id else SHAPE,))  # noqa: E731
        told = {**layouts(), **layouts((tall,), group=1)}
        for at, key in enumerate(mixed):
            self.assertEqual(self.look(adapter, mixed, told), [1] * at + [0] * (len(mixed) - at))
            self.store(adapter, [key], [memory(at, at)])
        into = [memory(at) for at in range(len(mixed))]
        self.assertEqual(self.load(adapter, mixed, into), [1] * len(mixed))
        self.assertEqual(self.bytes_of(into), self.bytes_of(memory(at, at) for at in range(len(mixed))))

    def test_lookup_without_layout_uses_last_seen_layout(self):
        adapter, (chunk,) = self.adapter(), keys(1)
        self.assertEqual(self.look(adapter, [chunk], {}), [0])
        self.store(adapter, [chunk], [Memory("it")])
        for told in ({}, layouts((), ()), layouts(group=7)):
            self.assertEqual(self.look(adapter, [chunk], told), [1])

    def test_hashes_of_any_length_are_distinct_keys(self):
        adapter = self.adapter()
        chunks = [ObjectKey(bytes(8)), ObjectKey(bytes(32)), ObjectKey(bytes(33)), ObjectKey(bytes(7) + b"\1")]
        stored = [Memory(n) for n in range(4)]
        self.store(adapter, chunks, stored)
        into = [Memory() for _ in chunks]
        self.assertEqual(self.load(adapter, chunks, into), [1] * 4)
        self.assertEqual(self.bytes_of(into), self.bytes_of(stored))

    # Locks.

    def flood(self, adapter, of, mebibytes):
        """Store more than fits."""
        shape = (1 << 16, 8)
        for n in range(mebibytes):
            self.store(adapter, keys(1, of=f"{of}{n}"), [Memory(n, (shape,))])

    def test_found_object_stays_until_unlocked(self):
        adapter, chunks = self.adapter(ssd="32MiB", dram="8MiB"), keys(20)
        self.store(adapter, chunks, [Memory(n) for n in range(20)])
        self.assertEqual(self.look(adapter, chunks[:10]), [1] * 10)
        self.assertEqual(self.look(adapter, chunks[:5]), [1] * 5)
        adapter.submit_unlock(chunks[:10])
        self.flood(adapter, "first", 100)
        # Five were found twice and unlocked once; the pin of the same lookup keeps the others
        # found with them.
        into = [Memory() for _ in range(20)]
        self.assertEqual(self.load(adapter, chunks, into)[:5], [1] * 5)
        self.assertEqual(self.bytes_of(into[:5]), self.bytes_of(Memory(n) for n in range(5)))
        self.assertEqual(self.look(adapter, chunks[10:]), [0] * 10)
        adapter.submit_unlock(chunks[:5])
        adapter.submit_unlock(chunks[:20])
        self.assertEqual(adapter.report_status()["locked_key_count"], 0)
        self.flood(adapter, "second", 100)
        self.assertEqual(self.look(adapter, chunks), [0] * 20)

    def test_abandoned_locks_expire(self):
        now, released = [0.0], []
        pin = lambda name: types.SimpleNamespace(release=lambda: released.append(name))  # noqa: E731
        locks = Locks(60, lambda: now[0])
        locks.lock("aab", pin("first"))
        now[0] = 30
        locks.lock("a", pin("second"))
        locks.lock("", pin("none"))
        self.assertEqual(released, ["none"])
        locks.unlock("abx")
        self.assertEqual((locks.count(), released), (1, ["none"]))
        locks.unlock("a")
        self.assertEqual((locks.count(), released), (1, ["none", "first"]))
        locks.lock("cc", pin("third"))
        now[0] = 89.9
        self.assertTrue(locks.is_locked("a"))
        now[0] = 90
        self.assertEqual((locks.is_locked("a"), locks.is_locked("c"), locks.count()), (False, False, 0))
        self.assertEqual(released, ["none", "first", "second", "third"])
        # Unlocked by the first lookup, and locked by the next one after the first has ended.
        locks.lock("de", pin("fourth"))
        locks.unlock("d")
        now[0] = 120
        locks.lock("d", pin("fifth"))
        now[0] = 150
        self.assertEqual((locks.is_locked("d"), locks.is_locked("e"), released[-1]), (True, False, "fourth"))
        locks.close()
        self.assertEqual((locks.count(), released[-1]), (0, "fifth"))

    def serve(self, *flags):
        process = Process(f"unix:{self.home.name}/socket", *flags)
        self.addCleanup(process.said.close)
        self.addCleanup(process.child.stdout.close)
        self.addCleanup(process.child.wait)
        self.addCleanup(process.child.kill)
        return process

    def attached(self, process, **given):
        patient = {"look_timeout_ms": 30_000, "pin_timeout_ms": 10_000}
        adapter = PagelithL2Adapter({"attach": process.address, "revision": "weights-1", **patient, **given})
        self.addCleanup(adapter.close)
        return adapter

    def test_l1_is_shared_with_store_process(self):
        process = self.serve("--ssd", "0")
        for settings, shown in (({"attach": process.address}, [mock.call(mock.ANY, [(4096, 8192)])]), ({"store": {"dram": {"bytes": "8MiB"}}}, [])):
            with mock.patch("pagelith.lmcache.adapter.share") as share:
                adapter = PagelithL2Adapter({"revision": "weights-1", **settings}, types.SimpleNamespace(ptr=4096, size=8192, align_bytes=4096))
                self.addCleanup(adapter.close)
            self.assertEqual(share.mock_calls, shown)

    def answers(self, adapter):
        try:
            return adapter._store.exists([]) == [] and adapter._store.stats() and True
        except pagelith.UnavailableError:
            return None

    def test_object_found_in_store_process_stays_until_unlocked(self):
        process = self.serve("--dram", "8MiB", "--ssd", "0", "--policy", "lru")
        one, other, chunks = self.attached(process), self.attached(process, lock_ms=10), keys(20)
        self.store(one, chunks, [Memory(n) for n in range(20)])
        self.assertEqual(self.look(one, chunks[:10]), [1] * 10)
        self.assertEqual(self.look(one, chunks[:5]), [1] * 5)
        one.submit_unlock(chunks[:10])
        # Five were found twice and unlocked once, and another server of the same store process
        # stores more.
        pinned = lambda: one.report_status()["stats"]["objects_pinned"]  # noqa: E731
        until(lambda: pinned() == 5 or None)
        self.flood(other, "first", 20)
        into = [Memory() for _ in chunks]
        self.assertEqual(self.load(one, chunks, into), [1] * 5 + [0] * 15)
        self.assertEqual(self.bytes_of(into[:5]), self.bytes_of(Memory(n) for n in range(5)))
        # The other server's locks expire without any call of it.
        self.assertEqual(self.look(other, chunks), [1] * 5 + [0] * 15)
        one.submit_unlock(chunks[:5])
        until(lambda: pinned() == 0 or None)
        self.assertTrue(one.report_status()["pins_taken"])
        self.flood(other, "second", 20)
        self.assertEqual(self.look(one, chunks[10:]), [0] * 10)
        self.assertEqual(self.look(other, chunks), [0] * 20)
        # Its pins end with it.
        self.store(one, chunks[:1], [Memory(0)])
        self.assertEqual((self.look(one, chunks[:1]), pinned()), ([1], 1))
        one.close()
        until(lambda: other.report_status()["stats"]["objects_pinned"] == 0 or None)

    def test_store_process_stalled_after_lookup_blocks_no_caller(self):
        process = self.serve("--dram", "8MiB", "--ssd", "0", "--policy", "lru")
        # Far longer than the test runs: a wait for that timeout would be detected.
        adapter = self.attached(process, look_timeout_ms=1000, pin_timeout_ms=400, get_timeout_ms=1000, lock_ms=3_600_000)
        chunks, into = keys(20), [Memory() for _ in range(20)]
        self.store(adapter, chunks, [Memory(n) for n in range(20)])
        self.assertEqual((self.look(adapter, chunks[:10]), self.look(adapter, chunks)), ([1] * 10, [1] * 20))
        asked, waited, real = [], [], adapter._store
        adapter._pins._store = types.SimpleNamespace(pin=lambda names, timeout: (asked.append(timeout), real.pin(names, timeout=timeout))[1])
        exists = lambda names, timeout=None: (waited.append(timeout), real.exists(names, timeout=timeout))[1]  # noqa: E731
        adapter._store = types.SimpleNamespace(
            exists=exists, put=real.put, get=real.get, remove=real.remove, stats=real.stats, close=real.close
        )
        stop(process)
        with self.assertLogs("pagelith.lmcache") as told:
            # A load is a miss once its time is over, of present objects and of absent ones.
            self.assertEqual(self.load(adapter, chunks[:10], into[:10]), [0] * 10)
            self.assertEqual(self.load(adapter, keys(30)[20:], into[10:]), [0] * 10)
            some = chunks[10:] + keys(31)[30:]
            self.assertEqual(self.look(adapter, some), [0] * 11)
            # The lookup has what the pin left of the time.
            self.assertLessEqual(waited[0], 0.6)
            # Pinning failed: it is suspended for now.
            self.assertEqual((self.look(adapter, some), asked), ([0] * 11, [0.4]))
            # One line reports the silent store process, for all calls.
            self.assertEqual(len([line for line in told.output if f"store={process.address}" in line and "failed_calls=1" in line]), 1)
        # An unlock does not wait for the store to release the pin.
        adapter.submit_unlock(chunks)
        self.assertEqual(adapter._locks.count(), 10)
        adapter.submit_unlock(chunks[:10])
        status = adapter.report_status()
        self.assertEqual((adapter._locks.count(), status["pins_to_be_released"], status["pins_taken"]), (0, 2, False))
        process.child.send_signal(signal.SIGCONT)
        until(lambda: sum(self.look(adapter, chunks[10:])) or None)
        adapter.submit_unlock(chunks * 1000)
        until(lambda: (status := adapter.report_status()).get("stats", {}).get("objects_pinned") == 0 and not status["pins_to_be_released"] or None)
        # It was killed, and is running again.
        adapter._pins._suspended_until = 0
        self.store(adapter, chunks, [Memory(n) for n in range(20)])
        self.assertEqual((self.look(adapter, chunks), len(asked)), ([1] * 20, 2))
        process.child.kill()
        process.child.wait()
        self.assertEqual(self.load(adapter, chunks, into), [0] * 20)
        self.assertEqual(self.look(adapter, chunks), [0] * 20)
        adapter.submit_unlock(chunks)
        until(lambda: adapter._pins.to_be_released() == 0 or None)
        os.unlink(process.address.removeprefix("unix:"))
        again = self.serve("--dram", "8MiB", "--ssd", "0", "--policy", "lru")
        # After three failures it is not contacted for a second.
        until(lambda: self.answers(adapter))
        self.assertEqual(self.store(adapter, chunks, [Memory(n) for n in range(20)]), (True, 20 * SIZE))
        adapter._pins._suspended_until = 0
        self.assertEqual((self.look(adapter, chunks), adapter.report_status()["stats"]["objects_pinned"]), ([1] * 20, 20))
        stop(again)
        adapter.close()

    def test_pins_resume_after_suspension(self):
        now, taken, released = [0.0], [], []

        def pin(names, timeout):
            taken.append((names, timeout))
            if names == "gone":
                raise pagelith.UnavailableError("gone")
            return types.SimpleNamespace(release=lambda: released.append(names))

        settings = Settings.read("here", {"attach": "unix:/x", "pin_timeout_ms": 50})
        failures = settings.failures(logging.getLogger("pagelith.lmcache"))
        pins = Pins(types.SimpleNamespace(pin=pin), settings, lambda: None, failures, lambda: now[0])
        first = pins.take("first")
        with self.assertLogs("pagelith.lmcache", "WARNING"):
            self.assertIsNone(pins.take("gone"))
        now[0] = 9.9
        self.assertIsNone(pins.take("second"))
        self.assertTrue(pins.given_up())
        first.release()
        now[0] = 10
        pins.take("third").release()
        pins.close()
        self.assertEqual((taken, released), ([(names, 0.05) for names in ("first", "gone", "third")], ["first", "third"]))

    def test_adapters_share_store_process(self):
        process = self.serve("--ssd", "0")
        waits = {"look_timeout_ms": 3000, "get_timeout_ms": 3000}
        one, other = (PagelithL2Adapter({"attach": process.address, "revision": "weights-1", **waits}) for _ in range(2))
        chunks, stored, into = keys(100), [Memory(n) for n in range(100)], [Memory() for _ in range(100)]
        self.assertEqual(self.store(one, chunks, stored), (True, 100 * SIZE))
        one.close()
        self.assertEqual((self.look(other, chunks), self.load(other, chunks, into)), ([1] * 100, [1] * 100))
        self.assertEqual(self.bytes_of(into), self.bytes_of(stored))
        # The adapter itself does not remove objects that it locked.
        other.submit_unlock(chunks[:50])
        other.delete(chunks)
        self.assertEqual(self.look(other, chunks), [0] * 50 + [1] * 50)
        self.assertTrue(other.report_status()["is_healthy"])
        other.submit_unlock(chunks)
        # A stalled process costs a lookup its second, and the status nothing.
        stop(process)
        started = time.monotonic()
        with self.assertLogs("pagelith.lmcache"):
            self.assertEqual(self.look(other, chunks), [0] * 100)
        self.assertFalse(other.report_status()["is_healthy"])
        self.assertLess(time.monotonic() - started, 25)
        process.child.send_signal(signal.SIGCONT)
        until(lambda: sum(self.look(other, chunks)) == 50 or None)
        self.assertTrue(other.report_status()["is_healthy"])
        process.child.kill()
        process.child.wait()
        # It was logged a moment ago.
        with self.assertNoLogs("pagelith.lmcache"):
            self.assertEqual(self.look(other, chunks), [0] * 100)
            self.assertEqual(self.load(other, chunks[:2], into[:2]), [0, 0])
            self.assertEqual(self.store(other, chunks[:2], stored[:2]), (False, 0))
        self.assertFalse(other.report_status()["is_healthy"])
        other.close()

    # LMCache's accounting.

    def test_stored_bytes_are_reported_once_and_deletions_too(self):
        adapter, chunks = self.adapter(), keys(4, cache_salt="user")
        objects = [Memory(n) for n in range(4)]
        self.assertEqual(self.store(adapter, chunks, objects), (True, 4 * SIZE))
        self.assertEqual(self.store(adapter, chunks, objects), (True, 0))
        self.assertEqual(adapter.told, [("stored", chunks, [SIZE] * 4)])
        self.assertEqual(self.look(adapter, chunks[:1]), [1])
        adapter.delete(chunks[:2])
        # The first object is locked.
        self.assertEqual(adapter.told[1:], [("deleted", [chunks[1]], [SIZE])])
        self.assertEqual(self.look(adapter, chunks), [1, 0, 1, 1])
        self.assertEqual(self.load(adapter, chunks[2:3], [Memory()]), [1])
        self.assertEqual(adapter.told[2:], [("accessed", chunks[2:3])])
        # The store evicted it, or another server of it removed it.
        adapter._store.remove(adapter._names.all_of(chunks[3]))
        self.assertEqual(self.look(adapter, chunks[3:]), [0])
        self.assertEqual(adapter.told[3:], [("deleted", chunks[3:], [SIZE])])
        self.assertEqual(adapter.used, {"user": 2 * SIZE})
        adapter.submit_unlock(chunks[:1] * 2)
        adapter.delete(chunks)
        self.assertEqual(adapter.used, {"user": SIZE})

    def test_object_stored_twice_is_counted_once(self):
        adapter, chunks = self.adapter(), keys(1)
        self.assertEqual(self.store(adapter, chunks * 2, [Memory(0), Memory(0)]), (True, SIZE))
        # The store evicted it, and it was stored again before a lookup.
        adapter._store.remove(adapter._names.all_of(chunks[0]))
        self.assertEqual(self.store(adapter, chunks, [Memory(0)]), (True, SIZE))
        self.assertEqual(adapter.told, [("stored", chunks, [SIZE])])

    def test_failing_listener_fails_no_task(self):
        adapter, chunks = self.adapter(), keys(1)

        def fail(*_):
            raise RuntimeError("a listener's")

        adapter._notify_keys_stored = adapter._notify_keys_accessed = fail
        with self.assertLogs("pagelith.lmcache", "ERROR"):
            self.assertEqual(self.store(adapter, chunks, [Memory(1)]), (True, SIZE))
            self.assertEqual(self.load(adapter, chunks, [Memory()]), [1])

    def test_store_full_of_locked_objects_is_reported(self):
        adapter, chunks = self.adapter(ssd="0", dram="8MiB", put_wait_ms=1), keys(2000)
        # The later objects took the space of the earlier ones.
        self.assertEqual(self.store(adapter, chunks, [Memory(n) for n in range(2000)]), (True, 2000 * SIZE))
        here = self.look(adapter, chunks)
        self.assertTrue(500 < sum(here) < 1500)
        others = keys(10, of="other")
        with self.assertLogs("pagelith.lmcache", "WARNING"):
            self.assertEqual(self.store(adapter, others, [Memory(n) for n in range(10)]), (False, 0))
        self.assertEqual(self.look(adapter, chunks), here)
        adapter.submit_unlock(chunks * 2)
        self.assertEqual(self.store(adapter, others, [Memory(n) for n in range(10)]), (True, 10 * SIZE))

    # Configuration, and invalid memory.

    def test_invalid_adapter_params_are_refused_at_start(self):
        with self.assertRaisesRegex(ValueError, "adapter_params.*'base_path' is an unknown key.*'read_threads' must be a whole number"):
            self.adapter(base_path="/x", read_threads=0)
        with self.assertRaisesRegex(ValueError, "one of the two"):
            self.adapter(attach="unix:/x")
        with self.assertRaisesRegex(ValueError, "one of the two"):
            PagelithL2Adapter({}, l1_memory_desc=types.SimpleNamespace(ptr=0, size=0, align_bytes=4096))

    def test_unusable_memory_fails_its_task_alone(self):
        adapter, chunks = self.adapter(), keys(3)
        gone = Memory(2)
        gone.valid = False
        short = Memory(3)
        short.length -= 1
        for memory in (Memory(1, device="cuda"), Memory(room=SIZE - 1), gone, short):
            with self.assertLogs("pagelith.lmcache", "ERROR"):
                self.assertEqual(self.store(adapter, chunks, [Memory(0), memory, Memory(9)]), (False, 0))
                self.assertEqual(self.load(adapter, chunks[1:2], [memory]), [0])
            self.assertEqual(self.look(adapter, chunks), [0] * 3)
        self.assertEqual(self.store(adapter, chunks, [Memory(n) for n in range(3)]), (True, 3 * SIZE))
        self.assertEqual(self.look(adapter, chunks), [1] * 3)

    def test_object_whose_memory_was_taken_back_is_not_stored(self):
        adapter, chunks = self.adapter(), keys(2)
        objects, real = [Memory(0), Memory(1)], adapter._store

        def put(*given, **named):
            outcomes = real.put(*given, **named)
            objects[1].valid = False
            return outcomes

        adapter._store = types.SimpleNamespace(
            put=put, exists=real.exists, remove=real.remove, pin=real.pin, close=real.close
        )
        with self.assertLogs("pagelith.lmcache", "ERROR"):
            self.assertEqual(self.store(adapter, chunks, objects), (False, 0))
        self.assertEqual(self.look(adapter, chunks), [0, 0])

    # LMCache's serde.

    def test_serialized_bytes_are_found_with_serde_set(self):
        serialized = lambda seed=None, length=999: Memory(seed, ((length,),), (UINT8,))  # noqa: E731
        adapter, chunks = self.adapter(serde="fp8 e4m3fn"), keys(2)
        self.assertEqual(self.store(adapter, chunks, [serialized(0), serialized(1)]), (True, 2 * 999))
        # A lookup brings the layout before the serde.
        self.assertEqual(self.look(adapter, chunks), [1, 1])
        into = serialized()
        self.assertEqual(self.load(adapter, chunks[:1], [into]), [1])
        self.assertEqual(into.buffer.raw, serialized(0).buffer.raw)
        # Another length belongs to another configuration.
        into = serialized("before", 1000)
        with self.assertLogs("pagelith.lmcache", "WARNING"):
            self.assertEqual(self.load(adapter, chunks[1:], [into]), [0])
        self.assertEqual(into.buffer.raw, serialized("before", 1000).buffer.raw)
        self.assertEqual(self.look(adapter, chunks), [1, 0])
        with self.assertLogs("pagelith.lmcache", "ERROR") as told:
            self.assertEqual(self.store(adapter, keys(1, of="plain"), [Memory(1)]), (False, 0))
        self.assertIn("LMCache's own", told.output[0])
        # Stored again with the current length, it is found and read.
        self.assertEqual(self.store(adapter, chunks[1:], [serialized(5, 1000)]), (True, 1000))
        into = serialized(None, 1000)
        self.assertEqual((self.look(adapter, chunks), self.load(adapter, chunks[1:], [into])), ([1, 1], [1]))
        self.assertEqual(into.buffer.raw, serialized(5, 1000).buffer.raw)
        adapter.close()
        for settings in ({"serde": "fp8 e5m2"}, {}):
            other = self.adapter(**settings)
            self.assertEqual(self.look(other, chunks), [0, 0], settings)
            other.close()

    def test_missing_serde_setting_is_logged_once(self):
        adapter, chunks = self.adapter(), keys(1)
        self.store(adapter, chunks, [Memory(0, ((999,),), (UINT8,))])
        with self.assertLogs("pagelith.lmcache", "ERROR") as told:
            self.assertEqual(self.look(adapter, chunks), [0])
            self.assertEqual(self.look(adapter, chunks), [0])
        self.assertEqual((len(told.output), "adapter_params" in told.output[0]), (1, True))

    def test_status_is_reported_open_and_closed(self):
        adapter, chunks = self.adapter(), keys(2)
        self.store(adapter, chunks, [Memory(0), Memory(1)])
        self.look(adapter, chunks)
        status = adapter.report_status()
        self.assertEqual((status["is_healthy"], status["locked_key_count"], status["stats"]["objects"]), (True, 2, 2))
        adapter.close()
        self.assertFalse(adapter.report_status()["is_healthy"])
