"""Arguments that change while a call inspects them, by an entry's own code or by another thread.

The entries here change the lists themselves, in place of a thread that runs meanwhile, so that it
happens every time.
"""

import ctypes
import sys
import unittest

import pagelith
from test_tensors import Tensor, key

LENGTH = 10_000


class ReentrantTensor(Tensor):
    """A tensor of `LENGTH` bytes that runs code when it is inspected."""

    def __init__(self, on_access, when="__dlpack__"):
        super().__init__([LENGTH // 2])
        self.on_access, self.when = on_access, when

    def __dlpack_device__(self):
        if self.when == "__dlpack_device__":
            self.on_access()
        return super().__dlpack_device__()

    def __dlpack__(self):
        if self.when == "__dlpack__":
            self.on_access()
        return super().__dlpack__()


class Number:
    """An integer that runs code when it is inspected."""

    def __init__(self, number, on_access):
        self.number, self.on_access = number, on_access

    def __index__(self):
        self.on_access()
        return self.number


class Buffered:
    """Bytes with Python 3.12's buffer protocol that run code when they are inspected."""

    def __init__(self, on_access):
        self.memory, self.on_access = bytearray(LENGTH), on_access

    def __buffer__(self, flags):
        self.on_access()
        return memoryview(self.memory)


class Path:
    """A path that runs code when it is inspected."""

    def __init__(self, path, on_access):
        self.path, self.on_access = path, on_access

    def __fspath__(self):
        self.on_access()
        return self.path


def address_of(memory, on_access):
    """An (address, length) that runs code when it is inspected."""
    return (Number(ctypes.addressof(memory), on_access), LENGTH)


class ListsDuringCall(unittest.TestCase):
    def setUp(self):
        self.store = pagelith.Store({"dram": {"bytes": "4MiB"}})
        self.addCleanup(self.store.close)
        self.kept = ctypes.create_string_buffer(LENGTH)
        self.page = 0

    def new(self, count):
        """Keys of one page each."""
        self.page += count
        return [key(self.page - n) for n in range(count)]

    def on_one_page(self, count):
        keys = self.new(1)
        return [pagelith.Key(pagelith.Namespace(model="m"), keys[0].page, component=f"c{n}") for n in range(count)]

    def entries(self, on_access):
        """One entry of each kind whose own code a call runs."""
        yield "__dlpack__", ReentrantTensor(on_access)
        yield "__dlpack_device__", ReentrantTensor(on_access, "__dlpack_device__")
        yield "address", address_of(self.kept, on_access)
        if sys.version_info >= (3, 12):
            yield "__buffer__", Buffered(on_access)

    def puts(self):
        """Every call that puts two objects: the number of keys, and the call."""

        def group(keys, sources):
            begun = self.store.begin_group(list(keys))
            put = begun.put(keys, sources)
            self.assertTrue(begun.commit())
            return put

        def handed(keys, sources):
            return self.store.submit_put(keys, sources).result()

        def handed_pages(keys, sources):
            return self.store.submit_put_pages(keys, sources).result()

        yield "put", self.new, self.store.put
        yield "put_group", self.on_one_page, self.store.put_group
        yield "put_pages", self.new, self.store.put_pages
        yield "submit_put", self.new, handed
        yield "submit_put_pages", self.new, handed_pages
        yield "Group.put", self.on_one_page, group

    def length_of(self, wanted):
        """The length of the stored object."""
        for length in (0, LENGTH, 2 * LENGTH, 3 * LENGTH):
            if self.store.get([wanted], [bytearray(length)])[0]:
                return length
        return None

    def test_put_stores_all_pieces_if_list_changes_during_call(self):
        for call, keys_of, put in self.puts():
            for change in ("clear", "pop", "append"):
                for kind, _ in self.entries(None):
                    first, second = [], [bytes(LENGTH), bytes(LENGTH)]
                    sources, keys = [first, second], keys_of(2)
                    wanted = list(keys)

                    def on_access(lists=(first, second, sources, keys), change=change):
                        for each in lists:
                            each.append(bytes(LENGTH)) if change == "append" else each and getattr(each, change)()

                    first += [bytes(LENGTH), dict(self.entries(on_access))[kind], bytes(LENGTH)]
                    with self.subTest(call=call, change=change, kind=kind):
                        put(keys, sources)
                        self.assertNotEqual(len(keys), 2)
                        self.assertEqual([self.length_of(one) for one in wanted], [3 * LENGTH, 2 * LENGTH])

    def test_get_fills_all_pieces_if_list_changes_during_call(self):
        whole = bytes(n % 251 for n in range(2 * LENGTH))
        wanted = self.new(2)
        self.store.put(wanted, [whole, whole])

        def handed(*given, **how):
            return self.store.submit_get(*given, **how).result()

        for call in (self.store.get, handed):
            for kind, _ in self.entries(None):
                into, first = [bytearray(LENGTH), bytearray(LENGTH)], [bytearray(LENGTH)]
                destinations, keys = [first, into], list(wanted)

                def on_access(lists=(first, into, destinations, keys)):
                    for each in lists:
                        each.clear()

                pieces = list(into)
                first.append(dict(self.entries(on_access))[kind])
                with self.subTest(call=call, kind=kind):
                    got = call(keys, destinations)
                    self.assertEqual([outcome.bytes for outcome in got], [2 * LENGTH, 2 * LENGTH])
                    self.assertEqual(b"".join(pieces), whole)

    def test_get_uses_passed_ranges_if_list_changes_during_call(self):
        whole = bytes(n % 251 for n in range(LENGTH))
        wanted = self.new(3)
        self.store.put(wanted, [whole] * 3)
        ranges = []

        def shift():
            ranges.append(ranges.pop(1))

        ranges += [(Number(0, shift), 10), (10, 20), (20, 30)]
        into = [bytearray(10) for _ in wanted]
        self.assertTrue(all(self.store.get(wanted, into, ranges=ranges)))
        self.assertEqual(b"".join(into), whole[:30])

    def test_lookup_checks_all_pages_if_list_changes_during_call(self):
        pages = [bytes([n]) * 32 for n in range(3)]
        keys = [key(n) for n in range(3)]
        self.store.put(keys, [b"x"] * 3)

        def listed():
            given = []
            # A page's hash may be a list of numbers.
            given += [[Number(0, given.clear), *pages[0][1:]], *pages[1:]]
            return given

        self.assertEqual(self.store.exists_groups(listed(), [keys[0]]).usable_pages, 3)
        self.assertEqual(keys[0].on_pages(listed()), keys)
        of_blocks = pagelith.Key(pagelith.Namespace(model="m"), pages[0], pool="blocks")
        self.store.put(of_blocks.on_pages(pages), [b"y"] * 3)
        query = pagelith.PoolQuery.block_groups([of_blocks], 1, 1, listed())
        self.assertEqual(self.store.exists_groups(pages, [keys[0]], [query]).pool_pages, [3])

    def test_namespace_has_all_layers_if_list_changes_during_call(self):
        split = []
        split += [(Number(0, split.clear), 1), (1, 2)]
        self.assertEqual(pagelith.Namespace("m", layer_split=split), pagelith.Namespace("m", layer_split=[(0, 1), (1, 2)]))

    def test_page_hash_has_all_numbers_if_list_changes_during_call(self):
        numbers = []
        numbers += [Number(7, numbers.clear), *bytes([7]) * 31]
        self.assertEqual(key(1).on_page(numbers), key(7))

    def test_settings_are_read_as_passed_if_changed_during_call(self):
        for change in ("clear", "popitem", "update"):
            settings = {"dram": {"bytes": "1MiB"}, "ssd": {}}
            lists = [settings, settings["dram"], settings["ssd"]]

            def on_access(lists=lists, change=change):
                for each in lists:
                    each.update(more=1) if change == "update" else each and getattr(each, change)()

            settings["ssd"]["dirs"] = [Path("/nowhere", on_access), Path("/nowhere", settings.clear)]
            settings["close_timeout_ms"] = "words"
            # The message shows which settings were read: all of them, and none that was added
            # later.
            with self.subTest(change=change), self.assertRaises(pagelith.InvalidError) as raised:
                pagelith.Store(settings)
            self.assertIn("close_timeout_ms", str(raised.exception))
            self.assertNotIn("more", str(raised.exception))

    def test_resized_memory_is_put_with_checked_length(self):
        memory = (ctypes.c_char * 8).from_buffer_copy(b"8 bytes.")
        keys = self.new(2)
        # ctypes can extend exported memory; memory this small is not moved.
        self.store.put(keys, [memory, ReentrantTensor(lambda: ctypes.resize(memory, 5000))])
        into = bytearray(8)
        self.assertTrue(self.store.get(keys[:1], [into])[0])
        self.assertEqual(into, b"8 bytes.")

    def test_registered_memory_keeps_its_export(self):
        tensor = Tensor([LENGTH // 2])
        held = self.store.register(tensor)
        self.assertEqual((tensor.exported, tensor.dropped), (1, 0))
        held.release()
        self.assertEqual((tensor.exported, tensor.dropped), (1, 1))
        memory = bytearray(LENGTH)
        with self.store.register([memory]), self.assertRaises(BufferError):
            memory.append(0)
        memory.append(0)


if __name__ == "__main__":
    unittest.main()
