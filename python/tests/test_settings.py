"""Settings of stores and adapters: validated once, before anything is created."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from test_store import Process

import pagelith
from pagelith.settings import StoreSettings


def owned(path, user):
    """The file's status, as if this user owned it."""
    known = os.stat(path)
    return types.SimpleNamespace(st_uid=user, **{name: getattr(known, name) for name in ("st_mode", "st_size", "st_blksize")})


def secret_of(entry):
    """The digits in an entry of a key file."""
    return re.search('"([0-9a-f]{64})"', entry)[1]


class Refused(unittest.TestCase):
    """Each case in its own directory, in which nothing is left."""

    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.home.name)

    def store(self, **ssd):
        given = {"dirs": ["kv"], "bytes": "64MiB", "segment_bytes": "4MiB", **ssd}
        return {"dram": {"bytes": "8MiB"}, "index": {"max_objects": 1000}, "ssd": given}

    def openings(self, store):
        """An embedded store, opened directly and by adapters."""
        yield lambda: pagelith.Store(store)
        yield lambda: StoreSettings.read("here", {"store": store}).open("rank_0", events_max=10)

    def assert_refused(self, words, store):
        said = set()
        for opening in self.openings(store):
            with self.assertRaisesRegex(pagelith.InvalidError, words) as refused:
                opening()
            said.add(str(refused.exception))
            self.assertEqual(os.listdir(), [])
        self.assertEqual(len(said), 1)

    def test_directories_of_wrong_type_are_named_and_nothing_is_created(self):
        for dirs in ("kv", None, {"a": 1}, 3, ["kv", None], [1], [["kv"]], [""], ["kv", "kv"]):
            self.assert_refused("^ssd.dirs: must be a list of at most 64 different directories", self.store(dirs=dirs))

    def test_unexpanded_shell_paths_are_refused(self):
        for path in ("~/kv", "~", "$HOME/kv", "${DIR}"):
            self.assert_refused("ssd.dirs: .*only a shell expands that", self.store(dirs=[path]))
        peers = {"peers": ["tcp:127.0.0.1:1"], "key": "~/key"}
        self.assert_refused("remote.key: .*only a shell expands that", {**self.store(), "remote": peers})

    def test_settings_of_wrong_type_are_named_by_path(self):
        for section in (None, "kv", [], 7):
            self.assert_refused("^ssd: must be a table of settings", {"ssd": section})
            self.assert_refused("^events: must be a table of settings", {"events": section})
        self.assert_refused("^ssd.bytes: .*64XB", self.store(bytes="64XB"))
        self.assert_refused("^ssd.dirs: .*got=set", self.store(dirs={"kv"}))
        self.assert_refused("^ssd.bytes: .*got=bytes", self.store(bytes=b"64MiB"))
        self.assert_refused("^ssd.reinsert_ratio: .*NaN", self.store(reinsert_ratio=float("nan")))
        self.assert_refused("setting names must be strings", {1: 2})
        deep = {}
        deep["ssd"] = deep
        self.assert_refused("settings are nested too deeply", deep)

    def test_settings_unfit_for_machine_leave_no_directory(self):
        self.assert_refused("dram.bytes: must be lower", {**self.store(), "dram": {"bytes": "8TiB"}})

    def test_failed_creation_leaves_no_directory(self):
        for opening in self.openings(self.store(dirs=["a/kv", "b/kv"], bytes="1000TiB", segment_bytes="256MiB") | {"dram": {"bytes": "256MiB"}}):
            with self.assertRaises(pagelith.PagelithError):
                opening()
            self.assertEqual(os.listdir(), [])

    def test_failed_allocation_leaves_no_directory(self):
        program = """if True:
            import json, resource, sys, pagelith
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            try:
                pagelith.Store(json.loads(sys.argv[1]), subdirectory="rank_0")
            except pagelith.BusyError as error:
                print(error)
            """
        # More than the process may have, and no more than the machine has.
        store = {**self.store(io="blocking"), "dram": {"bytes": "2GiB"}, "memory": {"reserve": 0}}
        done = subprocess.run([sys.executable, "-c", program, json.dumps(store)], capture_output=True, text=True, timeout=100, check=True)
        self.assertIn("dram.bytes: no memory for the arena", done.stdout)
        self.assertEqual(os.listdir(), [])

    def test_adapter_settings_have_bounds(self):
        for given in ({"put_wait_ms": 10**30}, {"put_wait_ms": 1.5}, {"put_wait_ms": True}, {"get_timeout_ms": None}, {"tenant": None}):
            with self.assertRaisesRegex(ValueError, f"here for pagelith: '{next(iter(given))}' must be a"):
                StoreSettings.read("here", {"store": self.store(), **given})
        for given in (None, "kv", [1]):
            with self.assertRaisesRegex(ValueError, "here for pagelith must be a dictionary"):
                StoreSettings.read("here", given)


class AdapterSettings(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def settings(self, directory):
        ssd = {"dirs": (directory,), "bytes": "64MiB", "segment_bytes": "4MiB"}
        return {"dram": {"bytes": "8MiB"}, "index": {"max_objects": 1000}, "ssd": ssd}

    def test_path_objects_are_accepted(self):
        given = {"attach": pathlib.Path("/run/socket"), "key_name": "me", "key_file": pathlib.Path("/etc/key")}
        settings = StoreSettings.read("here", given)
        self.assertEqual((settings.attach, settings.key_file), ("unix:/run/socket", "/etc/key"))
        for name, wrong in (("attach", 5), ("key_file", b"/etc/key"), ("key_name", pathlib.Path("me"))):
            with self.assertRaisesRegex(ValueError, f"'{name}' must be a string.*, not {re.escape(repr(wrong))}"):
                StoreSettings.read("here", {**given, name: wrong})

    def test_secret_file_must_be_private(self):
        file, pipe = pathlib.Path(self.home.name, "key"), pathlib.Path(self.home.name, "pipe")
        file.write_bytes(b"\xffsecret\n")
        file.chmod(0o600)
        os.mkfifo(pipe)

        def key(path):
            return StoreSettings.read("here", {"attach": "/run/socket", "key_name": "me", "key_file": path})._key()

        # Its last byte is random too.
        self.assertEqual(key(file), ("me", b"\xffsecret\n"))
        for mode in (0o640, 0o604, 0o620):
            file.chmod(mode)
            with self.assertRaisesRegex(ValueError, f"'key_file' cannot be read: other users can read it .* mode={mode:o}$"):
                key(file)
        file.chmod(0o600)
        for path in (pipe, "/dev/null"):
            with self.assertRaisesRegex(ValueError, "'key_file' cannot be read: not a regular file path="):
                key(path)
        with mock.patch("os.geteuid", return_value=os.geteuid() + 1), mock.patch("os.fstat", return_value=owned(file, 12345)):
            with self.assertRaisesRegex(ValueError, "another user owns it.* owner=12345 "):
                key(file)
        file.write_bytes(bytes(100_000))
        with self.assertRaisesRegex(ValueError, "too long for a secret .* bytes_max=65536$"):
            key(file)

    def test_key_file_of_the_program_opens_its_store_process(self):
        def entry(name):
            return subprocess.run([os.environ["STORE_PROGRAM"], "key", name], capture_output=True, text=True, check=True).stdout

        def written(name, content):
            file = pathlib.Path(self.home.name, name)
            file.write_text(content)
            file.chmod(0o600)
            return file

        def opened(path, name="rank-0"):
            return StoreSettings.read("here", {"attach": process.address, "key_name": name, "key_file": path}).open("part")

        own, other = entry("rank-0"), entry("rank-1")
        both = written("keys.toml", own + other)
        process = Process(f"unix:{self.home.name}/socket", "--keys", str(both))
        self.addCleanup(process.ended)
        secret = secret_of(own)
        for name, content in (("own.toml", own), ("hex", secret), ("line", f"{secret}\n")):
            opened(written(name, content)).close()
        opened(both, "rank-1").close()
        raw = written("raw", "")
        raw.write_bytes(bytes.fromhex(secret))
        opened(raw).close()
        with self.assertRaises(pagelith.DeniedError):
            opened(written("wrong", secret_of(other)))
        with self.assertRaisesRegex(pagelith.InvalidError, "^the key file has no key of this name$"):
            opened(both, "rank-2")
        for content in ("x" * 65, own.replace("secret", "secret = "), own.replace(secret, secret[1:])):
            with self.assertRaisesRegex(pagelith.InvalidError, "line=.* file=") as refused:
                opened(written("bad", content))
            self.assertNotIn(secret[:8], str(refused.exception))

    def test_each_part_has_own_directory_on_every_drive(self):
        base = pathlib.Path(self.home.name, "new")
        with pagelith.Store(self.settings(base), subdirectory="rank_1") as store:
            self.assertTrue(store.opened.made)
        self.assertEqual(os.listdir(base), ["rank_1"])
        for name in ("", "a/b", "..", "/a", ".", "a/"):
            with self.assertRaisesRegex(pagelith.InvalidError, "subdirectory"):
                pagelith.Store(self.settings(base), subdirectory=name)
        self.assertEqual(os.listdir(base), ["rank_1"])

    def test_directories_from_environment_are_divided_too(self):
        os.environ["PAGELITH_SSD__DIRS"] = os.path.join(self.home.name, "env")
        self.addCleanup(os.environ.pop, "PAGELITH_SSD__DIRS")
        stores = [pagelith.Store(self.settings("unused"), subdirectory=f"rank_{rank}") for rank in range(2)]
        for store in stores:
            store.close()
        self.assertEqual(sorted(os.listdir(os.path.join(self.home.name, "env"))), ["rank_0", "rank_1"])

    def test_bytes_in_returns_capacity_of_store(self):
        base = os.path.join(self.home.name, "asked")
        self.assertIsNone(pagelith.Store.bytes_in(base))
        pagelith.Store(self.settings(base)).close()
        self.assertEqual(pagelith.Store.bytes_in(base), 64 << 20)
        self.assertIsNone(pagelith.Store.bytes_in(self.home.name))

    def test_pipe_in_place_of_store_file_does_not_block(self):
        base, pipes = pathlib.Path(self.home.name, "made"), pathlib.Path(self.home.name, "pipes")
        pagelith.Store(self.settings(base)).close()
        pipes.mkdir()
        for name in os.listdir(base):
            os.mkfifo(pipes / name)
        self.assertIsNone(pagelith.Store.bytes_in(pipes))
