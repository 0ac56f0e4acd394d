"""Submitted batches: the behaviour that callers rely on, tested with the installed wheel."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import unittest
import weakref

import pagelith
from test_store import PAGE, Case, content, key


class TrackedMemory(bytearray):
    """Memory whose release can be observed."""


class Submitted(Case):
    def test_batch_can_be_polled_waited_for_and_read_again(self):
        store = self.open()
        pages = [content(n) for n in range(8)]
        keys = [key(n) for n in range(8)]
        put = store.submit_put(keys, pages)
        self.assertEqual([outcome.state for outcome in put.result()], ["stored"] * 8)
        self.assertTrue(put.done())
        into = [bytearray(PAGE) for _ in range(9)]
        got = store.submit_get([*keys, key(99)], into, ranges=[(0, PAGE)] * 9)
        outcomes = got.result(timeout=30)
        self.assertEqual(([bool(one) for one in outcomes], outcomes[8].cause), ([True] * 8 + [False], "absent"))
        self.assertEqual([bytes(one) for one in into[:8]], pages)
        # The same objects for every reader.
        self.assertIs(got.result(), got.result())

    def test_submitted_pages_are_put_like_pages(self):
        store = self.open()
        k, v, state = key(1), key(1, component="v"), key(1, pool="mamba")
        part = store.submit_put_pages([k], [content(1)], required=[k, v]).result()
        self.assertEqual((part[0].state, store.exists([k])), ("waiting", [False]))
        self.assertEqual(store.submit_put_pages([v], [content(2)], required=[k, v]).result()[0].state, "stored")
        self.assertEqual(store.submit_put_pages([state], [content(3)], base=k).result()[0].state, "stored")
        self.assertEqual(store.exists([k, v, state]), [True] * 3)

    def test_invalid_call_is_raised_at_once_and_exports_nothing(self):
        store, page = self.open(), bytearray(PAGE)
        both = [key(1), key(2)]
        wrong = [
            lambda: store.submit_get(both, [page]),
            lambda: store.submit_get(both, [page, page]),
            lambda: store.submit_get([key(1)], [page], ranges=[]),
            lambda: store.submit_get([key(1)], [page], timeout=-1),
            lambda: store.submit_put(both, [page]),
            lambda: store.submit_put_pages([key(1)], [page], base=key(1), required=[key(1)]),
        ]
        for call in wrong:
            with self.assertRaises(pagelith.InvalidError):
                call()
        with self.assertRaises(BufferError):
            store.submit_get([key(1)], [bytes(PAGE)])
        page.append(0)

    def test_memory_is_exported_until_dropped_batch_ends(self):
        # No put finds space in a full store of pinned objects, so the puts wait.
        store = self.open(bytes="4MiB")
        filling = [key(n) for n in range(256)]
        store.put(filling, [content(n) for n in range(256)], timeout=5)
        store.flush()
        pinned = store.pin(filling)
        memory = TrackedMemory(content(7))
        gone = weakref.ref(memory)
        busy = [store.submit_put([key(1000 + n)], [content(n)], wait=30, timeout=30) for n in range(4)]
        store.submit_put([key(2000)], [memory], wait=0.01)
        with self.assertRaises(BufferError):
            memory.append(0)
        del memory
        gc.collect()
        self.assertIsNotNone(gone(), "let go of before the batch began")
        pinned.release()
        for one in busy:
            one.result()
        # It waits for batches without references.
        store.close()
        self.assertIsNone(gone(), "held by a batch that has ended")

    def test_close_waits_for_batches_and_refuses_new_ones(self):
        store = self.open()
        puts = [store.submit_put([key(n)], [content(n)]) for n in range(50)]
        store.close()
        self.assertTrue(all(put.done() for put in puts))
        self.assertEqual([put.result()[0].state for put in puts], ["stored"] * 50)
        into = bytearray(PAGE)
        with self.assertRaises(pagelith.ClosedError):
            store.submit_get([key(1)], [into])
        into.append(0)
        again = self.open()
        self.assertEqual(again.exists([key(n) for n in range(50)]), [True] * 50)

    def test_dropped_store_waits_for_batches(self):
        store = pagelith.Store({"dram": {"bytes": "8MiB"}, "index": {"max_objects": 1000}})
        puts = [store.submit_put([key(n)], [content(n)]) for n in range(50)]
        del store
        self.assertTrue(all(put.done() for put in puts))

    def test_result_can_be_read_after_timeout(self):
        store = self.open(bytes="4MiB")
        filling = [key(n) for n in range(256)]
        store.put(filling, [content(n) for n in range(256)], timeout=5)
        store.flush()
        with store.pin(filling):
            late = store.submit_put([key(1000)], [content(1)], wait=30, timeout=30)
            with self.assertRaises(TimeoutError):
                late.result(timeout=0)
            self.assertFalse(late.done())
        self.assertEqual(late.result()[0].state, "stored")

    def test_finalizer_at_batch_end_may_close_store(self):
        store = pagelith.Store({"dram": {"bytes": "8MiB"}, "index": {"max_objects": 1000}})
        memory = TrackedMemory(content(1))
        weakref.finalize(memory, store.close)
        batch = store.submit_put([key(1)], [memory])
        del memory
        self.assertEqual(batch.result()[0].state, "stored")
        # Memory is released before the completion is visible.
        with self.assertRaises(pagelith.ClosedError):
            store.exists([key(1)])

    def test_all_waiting_threads_get_result(self):
        store, told = self.open(), []
        store.put([key(n) for n in range(20)], [content(n) for n in range(20)])
        batches = [store.submit_get([key(n)], [bytearray(PAGE)]) for n in range(20)]
        threads = [threading.Thread(target=lambda one=one: told.append(one.result()[0].bytes)) for one in batches * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(told, [PAGE] * 60)


class Awaited(Case):
    def test_cancelled_task_leaves_batch_running(self):
        store = self.open(bytes="4MiB")
        filling = [key(n) for n in range(256)]
        store.put(filling, [content(n) for n in range(256)], timeout=5)
        store.flush()

        async def await_it(batch):
            return await batch

        async def all_of_it():
            pinned = store.pin(filling)
            waiting = [store.submit_put([key(1000 + n)], [content(n)], wait=30, timeout=30) for n in range(6)]
            tasks = [asyncio.create_task(await_it(batch)) for batch in [*waiting, waiting[0]]]
            await asyncio.sleep(0)
            tasks[1].cancel()
            with self.assertRaises(asyncio.CancelledError):
                await tasks[1]
            pinned.release()
            told = await asyncio.gather(*(task for at, task in enumerate(tasks) if at != 1))
            self.assertEqual([one[0].state for one in told], ["stored"] * 6)
            self.assertIs(told[0], told[5])
            # It continues whether or not a task awaits it, and an ended batch is awaited at once.
            self.assertEqual((await waiting[1])[0].state, "stored")
            self.assertEqual((await waiting[1])[0].state, "stored")

        asyncio.run(all_of_it())

    def test_closed_event_loop_is_not_notified(self):
        store = self.open(bytes="4MiB")
        filling = [key(n) for n in range(256)]
        store.put(filling, [content(n) for n in range(256)], timeout=5)
        store.flush()
        pinned = store.pin(filling)
        batch = store.submit_put([key(1000)], [content(1)], wait=30, timeout=30)

        async def give_up():
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(self.of(batch), 0.01)

        asyncio.run(give_up())
        pinned.release()
        self.assertEqual(batch.result()[0].state, "stored")

    @staticmethod
    async def of(batch):
        return await batch

    def test_await_requires_event_loop(self):
        batch = self.open().submit_get([key(1)], [bytearray(PAGE)])
        with self.assertRaises(RuntimeError):
            batch.__await__()


ENDS = """
import os, sys, pagelith
store = pagelith.Store({"dram": {"bytes": "8MiB"}, "index": {"max_objects": 1000}, "ssd": {"dirs": [sys.argv[1]], "bytes": "64MiB"}})
space = pagelith.Namespace("test", dtype="bf16", page_tokens=64)
kept = [store.submit_put([pagelith.Key(space, n.to_bytes(32, "little"))], [bytearray(16384)]) for n in range(100)]
if sys.argv[2] == "fork" and os.fork():
    sys.exit(os.wait()[1])
if sys.argv[2] == "fork":
    for call in (kept[0].done, kept[0].result, lambda: store.submit_get([], [])):
        try:
            call()
        except pagelith.ForkedError:
            continue
        sys.exit(1)
"""


class Ends(Case):
    def run_it(self, how):
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", ENDS, os.path.join(self.home.name, "store"), how]
        return subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=120)

    def test_interpreter_exit_waits_for_batches(self):
        for _ in range(5):
            ran = self.run_it("exit")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_forked_child_gets_error_and_exits_without_waiting(self):
        ran = self.run_it("fork")
        self.assertEqual(ran.returncode, 0, ran.stderr)


if __name__ == "__main__":
    unittest.main()
