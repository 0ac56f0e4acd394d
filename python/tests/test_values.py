"""Keys and namespaces as values, and the `repr` of every class."""

import copy
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
from typing import is_typeddict

import pagelith
from test_store import Process

SPACE = pagelith.Namespace("test", dtype="bf16", page_tokens=64)
KEYS = [
    pagelith.Key(SPACE, "a page", pool="kv"),
    pagelith.Key(SPACE, bytes(32), pool="mamba", component="temporal", draft=True),
    pagelith.Key(SPACE, b"\xff" * 32, shard="rank.tp1of2"),
]
VALUES = [SPACE, *KEYS]


class Values(unittest.TestCase):
    def test_pickled_value_is_equal_in_every_protocol(self):
        for value in VALUES:
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with self.subTest(value=value, protocol=protocol):
                    again = pickle.loads(pickle.dumps(value, protocol))
                    self.assertEqual((again, type(again), hash(again)), (value, type(value), hash(value)))

    def test_value_sent_to_other_process_is_equal(self):
        code = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps({k: str(k) for k in pickle.load(sys.stdin.buffer)}))"
        told = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(KEYS), stdout=subprocess.PIPE, check=True)
        self.assertEqual(pickle.loads(told.stdout), {key: str(key) for key in KEYS})
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.map(str, KEYS), [str(key) for key in KEYS])

    def test_invalid_pickle_is_refused(self):
        for text in ("", "a/b", str(KEYS[0]) + "/", str(KEYS[0]).upper()):
            with self.assertRaisesRegex(pagelith.InvalidError, "not an object key"):
                pagelith.Key.parse(text)
        for given in (b"", bytes(15), bytes(17)):
            with self.assertRaisesRegex(pagelith.InvalidError, "16 bytes"):
                pagelith.Namespace.of_id(given)
        with self.assertRaisesRegex(TypeError, "bytes"):
            pagelith.Namespace.of_id("0" * 16)

    def test_copied_value_is_equal(self):
        for value in VALUES:
            for again in (copy.copy(value), copy.deepcopy(value), copy.deepcopy([value, {"in": value}])[0]):
                self.assertEqual((again, hash(again)), (value, hash(value)))

    def test_values_compare_by_content(self):
        self.assertEqual(pagelith.Key(SPACE, "a page"), KEYS[0])
        self.assertEqual({key: n for n, key in enumerate(KEYS)}[pagelith.Key.parse(str(KEYS[1]))], 1)
        self.assertEqual(len({*KEYS, *copy.deepcopy(KEYS)}), 3)
        for other in (None, 5, str(KEYS[0]), SPACE):
            self.assertFalse(KEYS[0] == other)
            self.assertTrue(KEYS[0] != other)
        # The store's order: the objects of a page are adjacent.
        pages = [bytes([n]) * 32 for n in range(3)]
        keys = [key for page in pages for key in (pagelith.Key(SPACE, page, component=c) for c in "kv")]
        self.assertEqual(sorted(reversed(keys)), keys)
        self.assertEqual(sorted([SPACE, pagelith.Namespace("other")], key=lambda space: space.id), sorted([pagelith.Namespace("other"), SPACE]))
        with self.assertRaises(TypeError):
            KEYS[0] < SPACE  # noqa: B015


class Shown(unittest.TestCase):
    """`repr` of every class."""

    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def one_of_each(self):
        directory = os.path.join(self.home.name, "store")
        settings = {"dram": {"bytes": "8MiB"}, "ssd": {"dirs": [directory], "bytes": "64MiB", "segment_bytes": "4MiB"}, "events": {"max": 10}}
        store = pagelith.Store(settings)
        self.addCleanup(store.close)
        key = KEYS[0]
        yield store, f"""Store\\(dirs=\\["{directory}"\\], closed=False\\)"""
        yield store.opened, "OpenReport\\(made=True, objects=0, .*\\)"
        yield SPACE, "Namespace\\(id=[0-9a-f]{32}\\)"
        yield key, f"Key\\({SPACE.id.hex()}/.*/kv/kv/whole\\)"
        yield store.begin_request(), "Request\\([0-9]+\\)"
        yield store.get([key], [bytearray(3)])[0], "GetOutcome\\(cause=absent\\)"
        yield store.put([key], [b"abc"])[0], "PutOutcome\\(state=stored\\)"
        yield store.submit_put([key], [b"abc"]), "Submitted\\(done=(True|False)\\)"
        yield store.take_events()[0][0], "Event\\(stored, dram, key=.*, new=True\\)"
        yield store.flush(), "FlushReport\\(durable_objects=1, durable_bytes=3, refused_objects=0, lost_objects=0\\)"
        yield pagelith.PoolQuery.all_pages([key]), "PoolQuery\\(all_pages, objects=1\\)"
        yield pagelith.PoolQuery.trailing_pages([key], 2), "PoolQuery\\(trailing_pages, objects=1, pages=2\\)"
        yield (
            pagelith.PoolQuery.block_groups([key], 4, 2, [bytes(32)] * 2),
            "PoolQuery\\(block_groups, objects=1, block_pages=4, group_pages=2, pages=2\\)",
        )
        yield (
            store.exists_groups([key.page], [key]),
            "PagesFound\\(usable_pages=1, anchor_pages=1, pool_pages=\\[\\], stops=1\\)",
        )
        pin, view, registration = store.pin([key]), store.view([key])[0], store.register(bytearray(4096))
        yield pin, "Pin\\(objects=1, held=True\\)"
        yield view, "View\\(address=0x[0-9a-f]+, nbytes=3, held=True\\)"
        yield registration, "Registration\\(used=(True|False), held=True\\)"
        for held in (pin, registration):
            held.release()
            yield held, ".*held=False\\)"
        group = store.begin_group([pagelith.Key(SPACE, "another")])
        yield group, "Group\\(over=False\\)"
        group.abort()
        yield group, "Group\\(over=True\\)"
        del view
        yield store.close(), "CloseReport\\(durable_objects=[01], unsaved_objects=0, unsaved_bytes=0\\)"
        yield store, ".*closed=True\\)"

    def test_every_class_has_repr(self):
        shown = set()
        for one, pattern in self.one_of_each():
            self.assertRegex(repr(one), f"^{pattern}$")
            shown.add(type(one))
        # A new class must be added here. A device needs a driver: `test_devices.py` has its repr.
        shown.add(pagelith.Device)
        classes = {value for value in map(vars(pagelith).get, pagelith.__all__) if isinstance(value, type)}
        classes = {kind for kind in classes if not issubclass(kind, Exception) and not is_typeddict(kind)}
        self.assertEqual(classes, shown)

    def test_attached_store_has_repr(self):
        path = os.path.join(self.home.name, "socket")
        process = Process(f"unix:{path}", "--ssd", "0")
        self.addCleanup(process.end)
        # The path of a socket is an address, too.
        for address in (f"unix:{path}", pathlib.Path(path)):
            with pagelith.Store.attach(address) as store:
                self.assertEqual(repr(store), f'Store(attached="unix:{path}", closed=False)')
            self.assertEqual(repr(store), f'Store(attached="unix:{path}", closed=True)')


if __name__ == "__main__":
    unittest.main()
