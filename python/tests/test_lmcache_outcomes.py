"""The adapter and the connector for LMCache, with every combination of outcomes of their
objects."""

import unittest

import test_lmcache_adapter
import test_lmcache_connector
from lmcache_stand_ins import SIZE, Memory, keys
from outcome_stand_ins import STATES, ScriptedStore, combinations, is_there, whole
from test_lmcache_connector import Chunk, Key


class AdapterOutcomes(test_lmcache_adapter.Case):
    def test_load_reports_each_outcome_and_failed_objects_are_misses(self):
        adapter = self.adapter()
        adapter._store = ScriptedStore(adapter._store)
        stored = [Memory(n) for n in range(3)]
        for ends in combinations(3):
            chunks = keys(3, of=str(ends))
            self.assertEqual(self.store(adapter, chunks, stored)[0], True)
            names = adapter._names.of_objects(chunks, stored)
            adapter._store.ends = dict(zip(names, ends, strict=True))
            into = [Memory() for _ in chunks]
            came = [int(end == "hit") for end in ends]
            self.assertEqual(self.load(adapter, chunks, into), came, ends)
            for memory, right, ok in zip(into, stored, came, strict=True):
                if ok:
                    self.assertEqual(memory.buffer.raw, right.buffer.raw, ends)
            self.assertEqual(self.look(adapter, chunks), came, ends)
            # A failed object is found again once it was stored again.
            self.store(adapter, chunks, stored)
            self.assertEqual(self.look(adapter, chunks), [1, 1, 1], ends)
            adapter.submit_unlock(chunks * 2)

    def test_store_task_succeeds_if_all_objects_are_stored(self):
        adapter = self.adapter()
        adapter._store = ScriptedStore(adapter._store)
        objects = [Memory(n) for n in range(3)]
        for states in combinations(3, STATES):
            chunks = keys(3, of=str(states))
            adapter._store.states = dict(zip(adapter._names.of_objects(chunks, objects), states, strict=True))
            success, written = self.store(adapter, chunks, objects)
            self.assertEqual(success, all(map(is_there, states)), states)
            self.assertEqual(written, states.count("stored") * SIZE, states)


class ConnectorOutcomes(test_lmcache_connector.Case):
    def test_chunk_is_read_if_bytes_and_metadata_are_read(self):
        async def body(connector):
            connector._store = ScriptedStore(connector._store)
            chunks = [Key("a"), Key("b")]
            await connector.batched_put(chunks, [Chunk(b"1" * 100), Chunk(b"2" * 50)])
            names = connector._current_names()
            each = [one for pair in zip(connector._keys_on(names.facts, chunks), connector._keys_on(names.bytes, chunks)) for one in pair]
            given = []
            allocate = connector._memory.allocate
            connector._memory.allocate = lambda *what, **how: given.append(allocate(*what, **how)) or given[-1]
            for ends in combinations(4):
                given.clear()
                connector._store.ends = dict(zip(each, ends, strict=True))
                came = [whole(ends[:2]), whole(ends[2:])]
                got = await connector.batched_get(chunks)
                self.assertEqual([chunk and bytes(chunk.byte_array) for chunk in got], [b"1" * 100 if came[0] else None, b"2" * 50 if came[1] else None], ends)
                # Memory of failed objects is released to LMCache.
                self.assertEqual(sum(chunk.held for chunk in given), sum(came), ends)
                got = await connector.batched_get_non_blocking("look", chunks)
                self.assertEqual(len(got), 2 if all(came) else int(came[0]), ends)

        self.run_with(body)


if __name__ == "__main__":
    unittest.main()
