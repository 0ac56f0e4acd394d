"""`pagelith.lmcache.connector` under LMCache's own remote backend: chunks stored by one process are
read by the next, byte for byte.

Run by clients/run.sh; `STORE_PROGRAM` is the program `pagelith`, for the tests with a store
process.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import lmcache_engine as engine

ALL = range(engine.CHUNKS)


def flip(directory):
    """Flip a bit in every 64 KiB of the stored bytes."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.getsize(path) < 16 << 20:
                continue
            with open(path, "r+b") as file:
                for at in range(96 << 10, os.path.getsize(path), 64 << 10):
                    file.seek(at)
                    if (byte := file.read(1)) and byte != b"\0":
                        file.seek(at)
                        file.write(bytes([byte[0] ^ 4]))


class EngineProcess(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        ssd = {"dirs": [os.path.join(self.home, "kv")], "bytes": "128MiB", "segment_bytes": "16MiB"}
        self.params = {"store": {"dram": {"bytes": "64MiB"}, "index": {"max_objects": 100000}, "ssd": ssd}}

    def written_by_another_process(self):
        command = [sys.executable, "-W", "ignore", engine.__file__, "write", json.dumps(self.params)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])

    def test_next_process_reads_stored_chunks_only(self):
        self.written_by_another_process()
        with engine.backend(self.params) as remote:
            self.assertEqual(engine.read(remote, ALL), ([True] * engine.CHUNKS, 0))
            # A missing chunk does not affect others, and ends a prefix.
            self.assertEqual(engine.read(remote, [0, 500, 2]), ([True, False, True], 0))
            keys = [engine.key(chunk) for chunk in (0, 1, 500, 2)]
            self.assertEqual((remote.batched_contains(keys), remote.contains(keys[2]), remote.contains(keys[3])), (2, False, True))
            asked = remote.connection.batched_get_non_blocking("a lookup", keys)
            came = asyncio.run_coroutine_threadsafe(asked, remote.loop).result(60)
            self.assertEqual([memory.get_size() for memory in came], [len(engine.content(chunk)) for chunk in (0, 1)])
            for memory in came:
                memory.ref_count_down()
            self.assertTrue(engine.free_of(remote))

    def test_damaged_chunks_are_misses_and_no_wrong_byte_is_read(self):
        self.written_by_another_process()
        flip(self.home)
        with engine.backend(self.params) as remote:
            came, wrong = engine.read(remote, ALL)
            self.assertEqual(wrong, 0)
            self.assertLess(sum(came), engine.CHUNKS)
            # A chunk missed for its bytes is not found again until it was stored again.
            self.assertEqual([remote.contains(engine.key(chunk)) for chunk in ALL], came)
            engine.write(remote, ALL)
            self.assertEqual(engine.read(remote, ALL), ([True] * engine.CHUNKS, 0))

    def test_chunks_of_other_worker_or_layout_are_misses(self):
        with engine.backend(self.params, worker=1, world=2) as remote:
            engine.write(remote, ALL, worker=1, world=2)
            self.assertEqual(engine.read(remote, ALL, worker=0, world=2)[0], [False] * engine.CHUNKS)
            self.assertEqual(engine.read(remote, ALL, worker=1, world=2), ([True] * engine.CHUNKS, 0))
        with engine.backend(self.params, worker=1, world=2, heads=16) as remote:
            self.assertEqual(engine.read(remote, ALL, worker=1, world=2, heads=16)[0], [False] * engine.CHUNKS)

    def test_connector_requires_revision_and_finds_nothing_of_another(self):
        from pagelith.lmcache.connector import PagelithConnector

        self.written_by_another_process()
        with engine.backend({**self.params, "revision": "another"}) as remote:
            self.assertEqual(engine.read(remote, ALL)[0], [False] * engine.CHUNKS)
        config = engine.configuration({**self.params, "revision": ""})
        memory = engine.LocalCPUBackend(config, engine.metadata(), dst_device="cpu")
        with self.assertRaisesRegex(ValueError, "remote_storage_plugin.pagelith.*which engine and model.*set 'revision' to a text"):
            PagelithConnector(asyncio.new_event_loop(), memory, config)
        with engine.backend(self.params) as remote:
            self.assertEqual(engine.read(remote, ALL), ([True] * engine.CHUNKS, 0))

    def test_removed_chunk_and_closed_store_are_misses(self):
        with engine.backend(self.params) as remote:
            engine.write(remote, ALL)
            self.assertTrue(remote.remove(engine.key(3)))
            self.assertEqual(engine.read(remote, [2, 3, 4]), ([True, False, True], 0))
            remote.connection.getWrappedConnector()._store.close()
            self.assertEqual(engine.read(remote, [2]), ([False], 0))
            self.assertFalse(remote.contains(engine.key(2)))

    def test_cancelled_read_releases_its_memory(self):
        with engine.backend(self.params) as remote:
            engine.write(remote, ALL)
            connector = remote.connection.getWrappedConnector()
            keys, batches, given_up = [engine.key(chunk) for chunk in ALL], [], []

            class RecordingStore:
                """The store, with a record of its submitted batches."""

                def __init__(self, store):
                    self.store = store

                def submit_get(self, *given, **how):
                    batches.append(self.store.submit_get(*given, **how))
                    return batches[-1]

            async def give_up():
                for turn in range(60):
                    task = asyncio.ensure_future(connector.batched_get(keys))
                    # When the first batch is submitted, the second one, or a later one.
                    while len(batches) < turn % 3 and not task.done():
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    task.cancel()
                    try:
                        for memory in await task:
                            memory.ref_count_down()
                    except asyncio.CancelledError:
                        given_up.append([batch.done() for batch in batches])
                    batches.clear()

            connector._store = RecordingStore(store := connector._store)
            try:
                asyncio.run_coroutine_threadsafe(give_up(), remote.loop).result(60)
            finally:
                connector._store = store
            self.assertEqual({len(batches) for batches in given_up}, {1, 2}, "not given up in both batches")
            self.assertTrue(all(map(all, given_up)), "a batch had its memory when the read had ended")
            self.assertTrue(engine.free_of(remote))
            self.assertEqual(engine.read(remote, ALL), ([True] * engine.CHUNKS, 0))

    def test_workers_share_restarted_store_process(self):
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        address = "unix:" + os.path.join(self.home, "socket")
        command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dir", os.path.join(self.home, "store")]
        command += ["--dram", "64MiB", "--ssd", "256MiB"]

        def serve():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            self.assertTrue(process.stdout.readline().startswith("listening "))
            return process

        store, self.params = serve(), {"attach": address}
        self.written_by_another_process()
        store.terminate()
        store.wait()
        store = serve()
        with engine.backend(self.params) as remote:
            self.assertEqual(engine.read(remote, ALL), ([True] * engine.CHUNKS, 0))
            store.kill()
            store.wait()
            self.assertEqual(engine.read(remote, [1]), ([False], 0))

    def test_invalid_configuration_is_reported(self):
        from pagelith.lmcache.connector import PagelithConnector

        config = engine.configuration({"store": {}, "attach": "unix:/x", "tenants": "a"})
        memory = engine.LocalCPUBackend(config, engine.metadata(), dst_device="cpu")
        with self.assertRaises(ValueError) as caught:
            PagelithConnector(asyncio.new_event_loop(), memory, config)
        for words in ("remote_storage_plugin.pagelith", "'tenants' is an unknown key", "one of the two"):
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
