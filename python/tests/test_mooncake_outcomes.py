"""Mooncake's client interface, with every combination of outcomes of a call's objects: each has its
code."""

import unittest

import test_mooncake_api
from outcome_stand_ins import STATES, ScriptedStore, combinations, whole

CODES = {"hit": 8, "absent": -704, "damaged": -801, "late": -800, "error": -10}


class Outcomes(test_mooncake_api.Case):
    def test_each_get_has_code_of_its_outcome(self):
        client, keys = self.client(), ["a", "b", "c"]
        self.memory[:24] = bytes(range(24))
        self.assertEqual(client.batch_put_from(keys, [self.at, self.at + 8, self.at + 16], [8] * 3), [0] * 3)
        client._store = ScriptedStore(client._store)
        self.addCleanup(setattr, client, "_store", client._store._store)
        for ends in combinations(3):
            client._store.ends = dict(zip(client._keys(keys), ends, strict=True))
            codes = [CODES[end] for end in ends]
            into = [self.at + 100 * (n + 1) for n in range(3)]
            self.assertEqual(client.batch_get_into(keys, into, [8] * 3), codes, ends)
            for n, end in enumerate(ends):
                if end == "hit":
                    self.assertEqual(self.memory[100 * (n + 1) : 100 * (n + 1) + 8], bytes(range(8 * n, 8 * n + 8)), ends)
            # In two pieces each.
            pieces = [[at, at + 50] for at in into]
            self.assertEqual(client.batch_get_into_multi_buffers(keys, pieces, [[3, 5]] * 3), codes, ends)
            tiers = [bool(places) for places in client.batch_get_replica_desc(keys).values()]
            self.assertEqual(tiers, [end == "hit" for end in ends], ends)

    def test_each_put_has_code_of_its_outcome(self):
        client, keys = self.client(), ["a", "b", "c"]
        client._store = ScriptedStore(client._store)
        self.addCleanup(setattr, client, "_store", client._store._store)
        for states in combinations(3, STATES):
            client._store.states = dict(zip(client._keys(keys), states, strict=True))
            codes = [0 if state in ("stored", "present") else -200 for state in states]
            self.assertEqual(client.batch_put_from(keys, [self.at, self.at + 8, self.at + 16], [8] * 3), codes, states)

    def test_value_is_read_if_length_and_bytes_are_read(self):
        client = self.client()
        self.assertEqual(client.put("a", b"12345678"), 0)
        client._store = ScriptedStore(client._store)
        self.addCleanup(setattr, client, "_store", client._store._store)
        names = client._current_names()
        for ends in combinations(2):
            # Put by another client, so the length is not cached here.
            client._lengths.clear()
            client._store.ends = dict(zip((names.length.on_page("a"), names.data.on_page("a")), ends, strict=True))
            self.assertEqual(client.get("a"), b"12345678" if whole(ends) else b"", ends)
            self.assertEqual(client.get_size("a"), 8 if ends[0] == "hit" else -704, ends)


if __name__ == "__main__":
    unittest.main()
