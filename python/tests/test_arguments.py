"""Invalid arguments: the error names the argument, with its index in a list, in Python's terms; no
bytes are moved."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

import pagelith
from pagelith.compat.mooncake_setup import path_of
from pagelith.settings import StoreSettings

SPACE = pagelith.Namespace("test")
PAGE = 4096
NOT_A_KEY = "must be a pagelith.Key, not"
NOT_KEYS = "must be a list of pagelith.Key, not"
NOT_MEMORIES = "must be a list of memories, one for each key, not"
MEMORY = "memory must be a buffer, a tensor, an \\(address, length\\), or a list of those, not"


def key(n):
    return pagelith.Key(SPACE, n.to_bytes(32, "little"))


def of(length):
    return ctypes.create_string_buffer(length)


class Refused(unittest.TestCase):
    def setUp(self):
        self.store = pagelith.Store({"dram": {"bytes": "8MiB"}})
        self.addCleanup(self.store.close)

    def assert_error(self, error, words, call, *given, **how):
        with self.assertRaisesRegex(error, words) as raised:
            call(*given, **how)
        # Terms that only Rust uses.
        for word in ("Sequence", "Some(", "integral", "`", "u64", "unsigned"):
            self.assertNotIn(word, str(raised.exception))

    def calls(self):
        """Every call with keys and memory: the name of its memory argument, and the call."""
        store, group = self.store, self.store.begin_group([key(1)])
        yield "sources", store.put
        yield "sources", store.put_group
        yield "sources", store.put_pages
        yield "sources", store.submit_put
        yield "sources", store.submit_put_pages
        yield "sources", group.put
        yield "destinations", store.get
        yield "destinations", store.submit_get

    def test_invalid_keys_are_named(self):
        lists = [lambda keys, call=call: call(keys, [bytearray(1)]) for _, call in self.calls()]
        store = self.store
        lists += [store.exists, store.exists_prefix, store.remove, store.pin, store.view, store.prefetch, lambda keys: store.lease(keys, 1), lambda keys: store.hint(keys, "demote")]
        for call in lists:
            for wrong, kind in ((5, "int"), (key(1), "Key"), ("key", "str"), (b"key", "bytes"), (None, "NoneType"), (iter([key(1)]), "list_iterator")):
                self.assert_error(TypeError, f"^keys {NOT_KEYS} {kind}$", call, wrong)
            for wrong, kind in ((5, "int"), (SPACE, "Namespace"), (pathlib.Path("/key"), "PosixPath")):
                self.assert_error(TypeError, f"^keys\\[2\\] {NOT_A_KEY} {kind}$", call, [key(1), key(2), wrong])
        self.assert_error(TypeError, f"^required {NOT_KEYS} int$", store.begin_group, 5)
        self.assert_error(TypeError, f"^required\\[0\\] {NOT_A_KEY} int$", store.put_pages, [key(1)], [b"x"], required=[5])
        self.assert_error(TypeError, f"^anchor {NOT_KEYS} Key$", store.exists_groups, [bytes(32)], key(1))
        for query in (
            pagelith.PoolQuery.all_pages,
            pagelith.PoolQuery.trailing_pages,
            lambda objects: pagelith.PoolQuery.block_groups(objects, 1, 1, [bytes(32)]),
        ):
            self.assert_error(TypeError, f"^objects {NOT_KEYS} Key$", query, key(1))
            self.assert_error(TypeError, f"^objects\\[1\\] {NOT_A_KEY} str$", query, [key(1), "key"])

    def test_invalid_memories_are_named_with_index(self):
        for name, call in self.calls():
            keys, good = [key(n) for n in range(3)], bytearray(10)
            for wrong, kind in ((5, "int"), (None, "NoneType"), (b"bytes", "bytes"), (bytearray(3), "bytearray"), ("text", "str"), (pathlib.Path("/x"), "PosixPath")):
                self.assert_error(TypeError, f"^{name} {NOT_MEMORIES} {kind}$", call, keys, wrong)
            for wrong, kind in ((5, "int"), ("text", "str"), (None, "NoneType"), (pathlib.Path("/x"), "PosixPath")):
                self.assert_error(TypeError, f"^{name}\\[2\\]: {MEMORY} {kind}$", call, keys, [good, bytearray(1), wrong])
                self.assert_error(TypeError, f"^{name}\\[1\\]\\[2\\]: {MEMORY} {kind}$", call, keys, [good, [bytearray(1), bytearray(1), wrong], good])
            self.assert_error(BufferError, f"^{name}\\[1\\]: .*contiguous", call, keys, [good, memoryview(bytearray(20))[::2], bytearray(1)])
        for call in (self.store.get, self.store.submit_get):
            self.assert_error(BufferError, "^destinations\\[1\\]: Object is not writable", call, keys, [good, bytes(10), bytearray(1)])
        self.assert_error(BufferError, "^memory: Object is not writable", self.store.register, bytes(10))

    def test_invalid_addresses_are_named_with_index(self):
        memory = of(PAGE)
        at = ctypes.addressof(memory)
        wrong = [
            ((-5, 10), pagelith.InvalidError, "address must be a whole number from 0 to 18446744073709551615, not -5"),
            ((at, -1), pagelith.InvalidError, "length must be a whole number from 0 to 18446744073709551615, not -1"),
            ((1 << 64, 1), pagelith.InvalidError, "address must be a whole number from 0 to 18446744073709551615, not 18446744073709551616"),
            ((at, 1.5), TypeError, "length must be a whole number, not float"),
            ((True, 10), TypeError, "address must be a whole number, not bool"),
            (("0x10", 10), TypeError, "address must be a whole number, not str"),
            ((at, None), TypeError, "length must be a whole number, not NoneType"),
            ((at, 1, 2), pagelith.InvalidError, "memory must be a pair \\(address, length\\) parts=3"),
            ((), pagelith.InvalidError, "memory must be a pair \\(address, length\\) parts=0"),
            ((0, 10), pagelith.InvalidError, "is not a valid memory range address=0x0 length=10"),
            (((1 << 64) - 1, 10), pagelith.InvalidError, "is not a valid memory range address=0xffffffffffffffff length=10"),
        ]
        for name, call in self.calls():
            for pair, error, words in wrong:
                self.assert_error(error, f"^{name}\\[1\\]: {words}$", call, [key(n) for n in range(2)], [bytearray(1), pair])
                self.assert_error(error, f"^{name}\\[0\\]\\[1\\]: {words}$", call, [key(1)], [[bytearray(1), pair]])
        for pair, error, words in wrong:
            self.assert_error(error, f"^memory: {words}$", self.store.register, pair)
        # NumPy's integers are accepted.
        whole = types.new_class("int64", (), {}, lambda body: body.update(__init__=lambda self, n: setattr(self, "n", n), __index__=lambda self: self.n))
        self.assertTrue(self.store.put([key(9)], [(whole(at), whole(PAGE))])[0])

    def test_invalid_ranges_are_named_with_index(self):
        for call in (self.store.get, self.store.submit_get):
            for wrong, error, words in [
                (5, TypeError, "^ranges must be a list of pairs \\(from, to\\) in bytes, or None for all of them, not int$"),
                ([None, 5], TypeError, "^ranges\\[1\\] must be a pair \\(from, to\\) in bytes, or None, not int$"),
                ([None, (1, 2, 3)], TypeError, "^ranges\\[1\\] must be a pair \\(from, to\\) in bytes, or None, not tuple$"),
                ([None, (0, "5")], TypeError, "^ranges\\[1\\]\\[1\\] must be a whole number, not str$"),
                ([None, (-1, 5)], pagelith.InvalidError, "^ranges\\[1\\]\\[0\\] must be a whole number from 0 to .*, not -1$"),
            ]:
                self.assert_error(error, words, call, [key(1), key(2)], [bytearray(1), bytearray(1)], ranges=wrong)

    def test_invalid_times_are_named(self):
        keys, store = [key(1)], self.store
        waits = {"wait": lambda wait: store.put(keys, [b"x"], wait=wait)}
        timeouts = [
            lambda timeout: store.put(keys, [b"x"], timeout=timeout),
            lambda timeout: store.get(keys, [bytearray(1)], timeout=timeout),
            lambda timeout: store.exists(keys, timeout=timeout),
            lambda timeout: store.flush(timeout=timeout),
            lambda timeout: store.close(timeout=timeout),
            store.submit_put(keys, [b"x"]).result,
        ]
        seconds = [lambda seconds: store.lease(keys, seconds), lambda seconds: store.hint(keys, "retain", seconds)]
        for name, call in [*waits.items(), *(("timeout", call) for call in timeouts), *(("seconds", call) for call in seconds)]:
            for wrong in (-1, -0.001, float("nan"), float("inf"), 1e300, 10**400):
                self.assert_error(pagelith.InvalidError, f"^{name} must be a number of seconds, from 0 to 18446744073709551615, not {re.escape(str(wrong))}$", call, wrong)
            for wrong, kind in ((True, "bool"), ("5", "str"), ([5], "list"), (pathlib.Path("5"), "PosixPath")):
                self.assert_error(TypeError, f"^{name} must be a number of seconds, not {kind}$", call, wrong)

    def test_invalid_hints_are_named(self):
        keys, store = [key(1)], self.store
        for wrong, kind in ((5, "int"), (b"demote", "bytes"), (None, "NoneType")):
            self.assert_error(TypeError, f"^hint must be the name of a hint, not {kind}$", store.hint, keys, wrong)
        self.assert_error(pagelith.InvalidError, '^hint must be one of session_ended, .*, not "Demote"$', store.hint, keys, "Demote")
        self.assert_error(pagelith.InvalidError, '^the hint "retain" requires seconds$', store.hint, keys, "retain")
        self.assert_error(pagelith.InvalidError, '^the hint "demote" takes no seconds$', store.hint, keys, "demote", 5)
        other = pagelith.Key(pagelith.Namespace("another"), bytes(32))
        self.assert_error(pagelith.InvalidError, "^a hint is for objects of one namespace", store.hint, [key(1), other], "demote")

    def test_invalid_numbers_are_named(self):
        keys, store, query = [key(1)], self.store, pagelith.PoolQuery
        for name, most, call in [
            ("depth", 2**32 - 1, lambda depth: store.exists(keys, depth=depth)),
            ("depth", 2**32 - 1, lambda depth: store.put(keys, [b"x"], depth=depth)),
            ("most", 2**64 - 1, lambda most: store.take_events(most)),
            ("page_tokens", 2**32 - 1, lambda tokens: pagelith.Namespace("m", page_tokens=tokens)),
            ("layout_version", 2**32 - 1, lambda version: pagelith.Namespace("m", layout_version=version)),
            ("pages", 2**64 - 1, lambda pages: query.trailing_pages(keys, pages)),
            ("block_pages", 2**64 - 1, lambda pages: query.block_groups(keys, pages, 1, [])),
            ("group_pages", 2**64 - 1, lambda pages: query.block_groups(keys, 1, pages, [])),
            ("fd", 2**32 - 1, lambda fd: store.share(fd, PAGE, 1)),
            ("address", 2**64 - 1, lambda address: store.share(0, address, 1)),
            ("length", 2**64 - 1, lambda length: store.share(0, PAGE, length)),
        ]:
            for wrong in (-1, most + 1):
                self.assert_error(pagelith.InvalidError, f"^{name} must be a whole number from 0 to {most}, not {wrong}$", call, wrong)
            for wrong, kind in ((True, "bool"), (1.0, "float"), ("1", "str"), (None, "NoneType")):
                self.assert_error(TypeError, f"^{name} must be a whole number, not {kind}$", call, wrong)

    def test_invalid_pages_are_named(self):
        words = "must be 32 bytes, or a string, which is hashed, not"
        for call in (lambda page: pagelith.Key(SPACE, page), key(1).on_page):
            for wrong, kind in ((5, "int"), (None, "NoneType"), (pathlib.Path("/x"), "PosixPath")):
                self.assert_error(TypeError, f"^page {words} {kind}$", call, wrong)
            self.assert_error(pagelith.InvalidError, "^a page's hash has 32 bytes length=3$", call, b"abc")
        for call in (key(1).on_pages, lambda pages: self.store.exists_groups(pages, [key(1)])):
            for wrong, kind in ((5, "int"), ("text", "str"), (bytes(32), "bytes")):
                self.assert_error(TypeError, f"^pages must be a list of pages' hashes, not {kind}$", call, wrong)
            self.assert_error(TypeError, f"^pages\\[1\\]: page {words} int$", call, [bytes(32), 5])
            self.assert_error(pagelith.InvalidError, "^pages\\[1\\]: a page's hash has 32 bytes length=3$", call, [bytes(32), b"abc"])

    def test_invalid_namespace_fields_are_named(self):
        for name, pair, wrong in [
            ("layer_split", "a pair of whole numbers", (5, [5], [(0, 1, 2)], [(0, "1")], [(0, -1)], [(0, True)])),
            ("extra", "a pair of strings", (5, {"a": "b"}, ["ab"], [("a", 5)], [("a", "b", "c")])),
        ]:
            for given in wrong:
                self.assert_error((TypeError, pagelith.InvalidError), f"^{name}.* must be ", lambda given=given, name=name: pagelith.Namespace("m", **{name: given}))
            self.assert_error(TypeError, f"^{name}\\[0\\] must be {pair}, not int$", lambda name=name: pagelith.Namespace("m", **{name: [5]}))
        self.assert_error(TypeError, "^extra\\[1\\]\\[0\\] must be a string, not int$", lambda: pagelith.Namespace("m", extra=[("a", "b"), (1, "b")]))
        self.assert_error(TypeError, "^extra\\[0\\]\\[1\\] must be a string, not int$", lambda: pagelith.Namespace("m", extra=[("a", 1)]))

    def test_argument_of_wrong_type_is_named(self):
        keys, store, make = [key(1)], self.store, pagelith.Key
        requests = [
            lambda request: store.put(keys, [b"x"], request=request),
            lambda request: store.put_group(keys, [b"x"], request=request),
            lambda request: store.put_pages(keys, [b"x"], request=request),
            lambda request: store.begin_group(keys, request=request),
            lambda request: store.get(keys, [bytearray(1)], request=request),
            lambda request: store.submit_get(keys, [bytearray(1)], request=request),
            lambda request: store.submit_put(keys, [b"x"], request=request),
            lambda request: store.submit_put_pages(keys, [b"x"], request=request),
            lambda request: store.exists(keys, request=request),
            lambda request: store.exists_prefix(keys, request=request),
            lambda request: store.exists_groups(["a"], keys, request=request),
            lambda request: store.prefetch(keys, request=request),
            lambda request: store.begin_group(keys).put(keys, [b"x"], request=request),
            lambda request: store.begin_group(keys).commit(request=request),
        ]
        bases = [
            lambda base: store.put_group(keys, [b"x"], base=base),
            lambda base: store.put_pages(keys, [b"x"], base=base),
            lambda base: store.submit_put_pages(keys, [b"x"], base=base),
        ]
        texts = ("tenant", "revision", "dtype", "layout")
        for name, must_be, calls in [
            ("request", "a pagelith.Request, or None", requests),
            ("base", "a pagelith.Key, or None", bases),
            ("pools", "a list of pagelith.PoolQuery", [lambda pools: store.exists_groups(["a"], keys, pools)]),
            ("pools\\[0\\]", "a pagelith.PoolQuery", [lambda pool: store.exists_groups(["a"], keys, [pool])]),
            ("namespace", "a pagelith.Namespace", [store.clear, lambda space: make(space, "a")]),
            ("model", "a string", [pagelith.Namespace]),
            *((name, "a string", [lambda text, name=name: pagelith.Namespace("m", **{name: text})]) for name in texts),
            *((name, "a string", [lambda text, name=name: make(SPACE, "a", **{name: text})]) for name in ("pool", "component", "shard")),
            ("draft", "True or False", [lambda draft: make(SPACE, "a", draft=draft)]),
            ("text", "a string", [make.parse]),
            ("id", "16 bytes", [pagelith.Namespace.of_id]),
            ("may_be_down", "True or False", [lambda down: pagelith.Store.attach("unix:/x", may_be_down=down)]),
            ("subdirectory", "a name of a directory, or None", [lambda name: pagelith.Store({}, subdirectory=name)]),
            ("directory", "a path", [pagelith.Store.bytes_in]),
        ]:
            for call in calls:
                self.assert_error(TypeError, f"^{name} must be {must_be}, not int$", call, 5)
        self.assert_error(TypeError, "^subdirectory must be a name of a directory, or None, not bytes$", pagelith.Store, {}, subdirectory=b"a")
        self.assert_error(pagelith.InvalidError, "^page must be a string in UTF-8: ", make, SPACE, "\udc80")
        self.assert_error(pagelith.InvalidError, "^tenant must be a string in UTF-8: ", lambda: pagelith.Namespace("m", tenant="\udc80"))

    def test_invalid_open_arguments_are_named(self):
        for address in (5, None, b"unix:/x"):
            self.assert_error(TypeError, "^address must be unix:PATH, tcp:HOST:PORT, rdma:HOST:PORT, or the path of a socket, not ", pagelith.Store.attach, address)
        must_be = "^key must be a pair of a name and a secret: a string, and bytes or a path object$"
        for secret in ("ab", ("a", "b"), ("a",), 5, (b"a", b"b")):
            with self.subTest(secret=secret):
                self.assert_error(TypeError, must_be, pagelith.Store.attach, "unix:/x", key=secret)
        for config in (5, ["a"]):
            self.assert_error(TypeError, "^config must be a dictionary of settings, or the path of a file of them, not ", pagelith.Store, config)

    def test_foreign_exception_passes_unchanged(self):
        class Own(Exception):
            pass

        class Tensor:
            def __dlpack_device__(self):
                raise Own("its own")

            def __dlpack__(self):
                raise AssertionError

        with self.assertRaisesRegex(Own, "^its own$"):
            self.store.put([key(1)], [Tensor()])


class Paths(unittest.TestCase):
    """`os.PathLike` objects wherever a path is accepted."""

    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = pathlib.Path(home.name)

    def settings(self, directory):
        return {"dram": {"bytes": "8MiB"}, "ssd": {"dirs": [directory], "bytes": "64MiB", "segment_bytes": "4MiB"}}

    def test_settings_accept_paths_and_any_mapping(self):
        where = self.home / "kv"
        with pagelith.Store(types.MappingProxyType(self.settings(where)), subdirectory=pathlib.Path("rank_0")):
            self.assertEqual(pagelith.Store.bytes_in(where / "rank_0"), 64 << 20)
        file = self.home / "settings.toml"
        file.write_text("[dram]\nbytes = '8MiB'\n")
        pagelith.Store(file).close()
        with self.assertRaisesRegex(pagelith.InvalidError, "subdirectory"):
            pagelith.Store(self.settings(where), subdirectory=pathlib.Path("a/b"))

    def test_bytes_path_is_accepted(self):
        class InBytes(os.PathLike):
            def __init__(self, path):
                self.path = path

            def __fspath__(self):
                return os.fsencode(self.path)

        where = InBytes(self.home / "kv")
        with pagelith.Store(self.settings(where), subdirectory=InBytes("rank_0")):
            self.assertEqual(pagelith.Store.bytes_in(InBytes(self.home / "kv" / "rank_0")), 64 << 20)
        with self.assertRaisesRegex(pagelith.UnavailableError, "none"):
            pagelith.Store.attach(InBytes(self.home / "none"))
        settings = StoreSettings.read("here", {"attach": InBytes("/run/socket"), "key_name": "me", "key_file": InBytes("/etc/key")})
        self.assertEqual((settings.attach, settings.key_file), ("unix:/run/socket", "/etc/key"))
        self.assertEqual(path_of("master_server_addr", InBytes("/run/socket"), "unix:"), "unix:/run/socket")


class Addresses(unittest.TestCase):
    """Unmapped addresses. Each runs in a separate process, which would crash on an access."""

    PRELUDE = """
import ctypes, mmap, os, pagelith
store = pagelith.Store({"dram": {"bytes": "8MiB"}})
key = pagelith.Key(pagelith.Namespace("m"), "page")
assert store.put([key], [bytes(8192)])[0]
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def mapped(allowed, pages=2):
    return libc.mmap(None, pages * 4096, allowed, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
def put(address, length=8192): return store.put([key.on_page("other")], [(address, length)])
def get(address, length=8192): return store.get([key], [(address, length)])
def register(address, length=8192): return store.register((address, length))
def said(call, *given):
    try:
        print(call(*given))
    except pagelith.InvalidError as error:
        print(error)
"""

    def run_there(self, program):
        done = subprocess.run([sys.executable, "-c", self.PRELUDE + program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def test_unmapped_memory_is_refused(self):
        lines = self.run_there("""
low, gone, guard, short = 4096, mapped(3), mapped(0), mapped(3, 3)
libc.munmap(gone, 8192)
libc.munmap(short + 4096, 8192)
for call in (put, get, register):
    for address in (low, gone, guard, short, 0xffff800000000000, 1 << 45):
        said(call, address)
""")
        self.assertEqual(len(lines), 18)
        for line in lines:
            self.assertRegex(line, "(sources|destinations)\\[0\\]: |memory: ")
            self.assertRegex(line, "address is not mapped in this process \\(GPU memory never is\\) address=0x[0-9a-f]+ length=8192$")

    def test_get_into_read_only_memory_is_refused(self):
        lines = self.run_there("""
fixed = mapped(mmap.PROT_READ)
said(put, fixed); said(get, fixed); said(register, fixed)
""")
        self.assertEqual(lines[0], "[PutOutcome(state=stored)]")
        self.assertRegex(lines[1], "^destinations\\[0\\]: address is not writable in this process address=0x[0-9a-f]+ length=8192$")
        self.assertRegex(lines[2], "^memory: address is not writable in this process")

    def test_memory_mapped_after_first_check_is_found(self):
        lines = self.run_there("""
said(put, mapped(3))
for pages in range(2, 200):
    address = mapped(3, pages)
    assert get(address)[0]
    # A range that the kernel joins with its neighbours, and one that does not begin at a mapping.
    assert get(address + 1, 8192)[0] if pages > 2 else True
""")
        self.assertEqual(lines, ["[PutOutcome(state=stored)]"])

    def test_mapped_file_name_does_not_confuse_memory_check(self):
        lines = self.run_there("""
import tempfile
with tempfile.TemporaryDirectory() as home:
    with open(os.path.join(os.fsencode(home), b"odd\\xff\\rname"), "w+b") as file:
        file.truncate(4096)
        odd = mmap.mmap(file.fileno(), 4096)
        said(put, 4096)
""")
        self.assertRegex(lines[0], "address is not mapped in this process")

    def test_empty_piece_may_have_any_address(self):
        lines = self.run_there("""
memory = mapped(3)
print(store.put([key.on_page("pieces")], [[(4096, 0), (memory, 4096), (1 << 45, 0), (memory + 4096, 4096)]]))
""")
        self.assertEqual(lines, ["[PutOutcome(state=stored)]"])


if __name__ == "__main__":
    unittest.main()
