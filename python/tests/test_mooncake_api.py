"""Mooncake's client interface over the store: its codes, and that unregistered memory is not
accessed."""

import collections
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from pagelith.compat import mooncake
from pagelith.compat.mooncake import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig
from pagelith.identity import Identity
from pagelith.identity.host import model_of_this_process
from pagelith.identity.sglang import Now

QUIET = "pagelith.compat.mooncake"


class Case(unittest.TestCase):
    def setUp(self):
        self.memory = ctypes.create_string_buffer(1 << 20)
        self.at = ctypes.addressof(self.memory)
        # No engine runs in this process, whatever stand-ins other tests install.
        none = mock.patch.dict(sys.modules, {"vllm.config": None, "sglang.srt.runtime_context": None})
        none.start()
        self.addCleanup(none.stop)
        revision = mock.patch.dict(os.environ, {"MOONCAKE_PAGELITH_REVISION": "weights-1"})
        revision.start()
        self.addCleanup(revision.stop)

    def client(self, *arguments, **how):
        client = MooncakeDistributedStore()
        self.assertEqual(client.setup("host", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "", "127.0.0.1:50051", *arguments, **how), 0)
        self.addCleanup(client.close)
        self.assertEqual(client.register_buffer(self.at, len(self.memory)), 0)
        return client


class Client(Case):
    def test_put_object_is_read_and_missing_one_returns_code(self):
        client = self.client()
        self.assertEqual((client.put("a", b"x" * 4096), client.put("a", b"y" * 4096)), (0, 0))
        self.assertEqual((client.get("a"), client.get("b"), client.get_size("a"), client.get_size("b")), (b"x" * 4096, b"", 4096, -704))
        self.assertEqual((client.is_exist("a"), client.batch_is_exist(["b", "a"])), (1, [0, 1]))
        self.memory[:8] = b"k" * 4 + b"v" * 4
        keys, config = ["k", "v"], ReplicateConfig(replica_num=2)
        self.assertEqual(client.batch_put_from(keys, [self.at, self.at + 4], [4, 4], config), [0, 0])
        into = [self.at + 100, self.at + 200, self.at + 300]
        self.assertEqual(client.batch_get_into(["v", "none", "k"], into, [4, 4, 5]), [4, -704, -600])
        self.assertEqual(self.memory[100:104], b"vvvv")
        self.assertEqual((client.remove("k"), client.remove("k"), client.is_exist("k")), (0, -704, 0))
        self.assertEqual((client.remove_all(force=True), client.is_exist("a"), client.get("a")), (0, 0, b""))
        self.assertEqual(client.remove_by_regex(".*"), -1012)

    def test_objects_in_several_pieces(self):
        client = self.client()
        self.memory[:6] = b"abcdef"
        put = client.batch_put_from_multi_buffers(["p"], [[self.at, self.at + 4]], [[2, 2]], ReplicateConfig())
        self.assertEqual((put, client.get("p")), ([0], b"abef"))
        got = client.batch_get_into_multi_buffers(["p", "q"], [[self.at + 10, self.at + 20], [self.at + 30]], [[1, 3], [4]])
        self.assertEqual((got, self.memory[10:11], self.memory[20:23]), ([4, -704], b"a", b"bef"))

    def test_lists_changed_during_call_are_used_as_passed(self):
        client, keys = self.client(), ["a", "b"]
        self.memory[:8] = b"aaaabbbb"

        class Addresses(list):
            """A list that another thread changes while a call reads it."""

            def __iter__(self):
                keys.reverse()
                return super().__iter__()

        self.assertEqual(client.batch_put_from(keys, Addresses([self.at, self.at + 4]), [4, 4]), [0, 0])
        self.assertEqual(keys, ["b", "a"])
        into = [self.at + 100, self.at + 200]
        self.assertEqual(client.batch_get_into(["a", "b"], into, [4, 4]), [4, 4])
        self.assertEqual((self.memory[100:104], self.memory[200:204]), (b"aaaa", b"bbbb"))
        keys[:] = ["a", "b"]
        self.assertEqual(client.batch_get_into(keys, Addresses(into), [4, 4]), [4, 4])
        self.assertEqual((keys, self.memory[100:104]), (["b", "a"], b"aaaa"))

    def test_unregistered_memory_is_not_accessed(self):
        client = self.client()
        with self.assertLogs(QUIET, "ERROR"):
            # An address like a GPU's: an access would end the process.
            self.assertEqual(client.register_buffer(64, 4096), -600)
            self.assertEqual(client.batch_put_from(["a", "b"], [64, self.at], [8, 8]), [-600, 0])
            self.assertEqual(client.batch_get_into(["b", "b"], [self.at + (1 << 20) - 4, self.at], [8, 8]), [-600, 8])
            self.assertEqual(client.register_buffer(self.at + 8, 16), -600)
        self.assertEqual(client.register_buffer(self.at, len(self.memory)), 0)
        self.assertEqual((client.unregister_buffer(self.at), client.unregister_buffer(self.at)), (0, -600))
        self.assertEqual(client.batch_get_into(["b"], [self.at], [8]), [-600])

    def test_full_pool_returns_minus_200(self):
        client = self.client()
        value = bytes(1 << 20)
        # Each with its length, 4 KiB more: the remaining space does not fit another.
        codes = [client.put(f"k{n}", value) for n in range(31)]
        self.assertEqual(codes, [0] * 31)
        pin = client._store.pin(client._keys([f"k{n}" for n in range(31)]))
        self.assertEqual((client.put("more", value), client.batch_put_from(["more"], [self.at], [1 << 20])), (-200, [-200]))
        pin.release()
        self.assertEqual(client.put("again", value), 0)

    def test_path_objects_are_accepted(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        with mock.patch.dict(os.environ, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(512 << 20)):
            client = self.client(None, enable_ssd_offload=True, ssd_offload_path=pathlib.Path(home.name) / "kv")
        self.assertEqual(client.put("a", b"bytes"), 0)
        self.assertEqual(os.listdir(home.name), ["kv"])
        client.close()
        with self.assertLogs(QUIET, "ERROR") as said:
            self.assertEqual(MooncakeDistributedStore().setup("host", master_server_addr=pathlib.Path(home.name) / "socket"), -600)
        self.assertIn("address=unix:", said.output[0])

    def test_tenants_and_restarts(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        os.environ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(512 << 20)
        self.addCleanup(os.environ.pop, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        offload = {"enable_ssd_offload": True, "ssd_offload_path": home.name}
        client = self.client(None, tenant_id="one", **offload)
        self.assertEqual(client.put("a", b"bytes"), 0)
        self.assertTrue(client.get_replica_desc("a")[0].is_memory_replica())
        client.close()
        for tenant, value in [("two", b""), ("one", b"bytes")]:
            client = self.client(None, tenant_id=tenant, **offload)
            self.assertEqual(client.get("a"), value)
            places = [place.is_local_disk_replica() for place in client.batch_get_replica_desc(["a"])["a"]]
            self.assertEqual(places, [True] if value else [])
            client.close()

    def test_client_without_engine_requires_revision(self):
        del os.environ["MOONCAKE_PAGELITH_REVISION"]
        with self.assertLogs(QUIET, "ERROR") as said:
            self.assertEqual(MooncakeDistributedStore().setup("host"), -600)
        self.assertRegex(said.output[0], "which engine and model.*set 'revision'|MOONCAKE_PAGELITH_REVISION")
        os.environ["MOONCAKE_PAGELITH_REVISION"] = "weights-1"
        client = MooncakeDistributedStore()
        self.addCleanup(client.close)
        self.assertEqual((client.setup("host"), client.put("a", b"x")), (0, 0))

    def test_vllm_client_warns_of_failing_load_policy_at_setup(self):
        for policy, lines in (("fail", 1), ("recompute", 0)):
            transfer = types.SimpleNamespace(is_kv_consumer=True, kv_load_failure_policy=policy)
            # As in a vLLM worker, where another module provides the model.
            engine = types.SimpleNamespace(get_current_vllm_config_or_none=lambda transfer=transfer: types.SimpleNamespace(kv_transfer_config=transfer))
            no_model = mock.patch.object(mooncake, "model_of_this_process", lambda: mooncake.no_engine)
            with mock.patch.dict(sys.modules, {"vllm.config": engine}), no_model, self.assertLogs(QUIET, "WARNING") as said:
                mooncake.logger.warning("nothing")
                self.client().close()
            self.assertEqual(len(said.output) - 1, lines)
            for line in said.output[1:]:
                self.assertRegex(line, '"kv_load_failure_policy": "recompute".*kv_load_failure_policy=fail$')

    def test_objects_of_other_revision_or_model_are_not_found(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        os.environ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(512 << 20)
        self.addCleanup(os.environ.pop, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        offload = {"enable_ssd_offload": True, "ssd_offload_path": home.name}
        models = [Identity({"rope": "linear"}), Identity({"rope": "default"})]
        for revision, model, here in (("1", None, 0), ("2", None, 0), ("1", models[0], 0), ("1", models[1], 0), ("1", None, 1), ("1", models[0], 1)):
            asked = model_of_this_process if model is None else lambda model=model: lambda: Now(model, False)
            with self.subTest((revision, model)), mock.patch.object(mooncake, "model_of_this_process", asked):
                client = self.client(None, revision=revision, **offload)
                self.assertEqual(client.is_exist("a"), here)
                client.put("a", b"bytes")
                client.close()

    def test_unexpected_error_returns_code(self):
        def broken():
            raise RuntimeError("broken")

        with mock.patch.object(mooncake, "model_of_this_process", broken), self.assertLogs(QUIET, "ERROR") as said:
            self.assertEqual(MooncakeDistributedStore().setup("host"), -600)
        self.assertIn("broken", said.output[0])
        client = self.client()
        client._model = broken
        for call, code in (
            (lambda: client.put("a", b"x"), -1), (lambda: client.is_exist("a"), -1), (lambda: client.batch_put_from(["a"], [self.at], [8]), [-1]),
            (lambda: client.batch_get_into(["a"], [self.at], [8]), [-1]), (lambda: client.get("a"), b""), (lambda: client.remove("a"), -1),
            (client.remove_all, -1), (lambda: client.get_replica_desc("a"), []),
        ):
            with self.assertLogs(QUIET, "ERROR") as said:
                self.assertEqual(call(), code)
            self.assertIn("broken", said.output[0])

    def test_weight_update_hides_old_objects_and_refuses_stale_puts(self):
        now = [Now(Identity({"weights": 1}), False)]
        with mock.patch.object(mooncake, "model_of_this_process", lambda: lambda: now[0]):
            client = self.client()
        self.assertEqual((client.put("a", b"old"), client.get("a")), (0, b"old"))
        now[0] = Now(Identity({"weights": 2}), True)
        self.assertEqual((client.is_exist("a"), client.get("a"), client.get_size("a")), (0, b"", -704))
        with self.assertLogs(QUIET, "ERROR") as said:
            for _ in range(20):
                self.assertEqual((client.put("a", b"stale"), client.batch_put_from(["a"], [self.at], [8])), (-800, [-800]))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(said.output[0], "weights were replaced.* failed_calls=1$")
        now[0] = Now(Identity({"weights": 2}), False)
        self.assertEqual((client.put("a", b"new"), client.get("a")), (0, b"new"))
        now[0] = Now(Identity({"weights": 1}), False)
        self.assertEqual(client.get("a"), b"old")
    def disk_of(self, total):
        """A disk of this size for a new directory, with all space free that the test's stores do
        not use."""
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)

        def usage(path):
            files = [os.path.join(folder, name) for folder, _, names in os.walk(home.name) for name in names]
            used = sum(os.path.getsize(file) for file in files)
            return collections.namedtuple("Usage", "total used free")(total, used, total - used)

        patched = mock.patch("shutil.disk_usage", usage)
        patched.start()
        self.addCleanup(patched.stop)
        return home.name

    def assert_refused(self, words, body):
        """It returns -600 and logs one line with the reason."""
        with self.assertLogs("pagelith", "ERROR") as said:
            code = body()
        self.assertIn(code, (-600, [-600]))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(said.output[0], words)

    def test_existing_store_keeps_its_size(self):
        home = self.disk_of(4 << 30)
        path = os.path.join(home, "rank_0")
        sizes = []
        for turn in range(3):
            # With the smallest memory that Mooncake accepts.
            client = MooncakeDistributedStore()
            self.assertEqual(client.setup("host", enable_ssd_offload=True, ssd_offload_path=path), 0)
            self.assertEqual(client.put(f"k{turn}", b"x" * 100), 0)
            client.close()
            sizes.append(mooncake.pagelith.Store.bytes_in(path))
        self.assertEqual(len(set(sizes)), 1)
        client = self.client(enable_ssd_offload=True, ssd_offload_path=path)
        self.assertEqual(client.batch_is_exist(["k0", "k1", "k2"]), [1, 1, 1])

    def test_ranks_on_one_disk_get_equal_sizes(self):
        home = self.disk_of(4 << 30)
        paths = [os.path.join(home, f"rank_{rank}") for rank in range(8)]
        for path in paths:
            client = MooncakeDistributedStore()
            self.assertEqual(client.setup("host", enable_ssd_offload=True, ssd_offload_path=path), 0)
            client.close()
        (size,) = {mooncake.pagelith.Store.bytes_in(path) for path in paths}
        self.assertTrue(0.1 < size / (4 << 30) < 0.125, size)

    def test_invalid_values_are_refused_and_nothing_is_created(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        path = os.path.join(home.name, "kv")

        def setup(**given):
            client = MooncakeDistributedStore()
            self.addCleanup(client.close)
            self.made = client
            return client.setup("host", **{"ssd_offload_path": path, **given})

        for size, length in [("64mb", 64 << 20), ("0.0625 GiB", 64 << 20), ("67108864", 64 << 20), (64 << 20, 64 << 20), ("64MB", 64 << 20)]:
            self.assertEqual(setup(global_segment_size=size), 0)
            self.assertEqual(self.made._store.opened.memory["arena"], length)
        for off in ("false", "False", "0", "off", 0, False, ""):
            self.assertEqual(setup(enable_ssd_offload=off), 0)
        self.assertEqual(os.listdir(home.name), [])
        for name, values in {
            "global_segment_size": (None, "much", "4 apples", -1, True, 1.5, "1e3"),
            "enable_ssd_offload": ("maybe", None, 2, 0.5),
            "tenant_id": (7,),
            "master_server_addr": (5,),
        }.items():
            for value in values:
                self.assert_refused(f"{name} must be .*got={value!r}", lambda name=name, value=value: setup(**{name: value}))
        for on in ("true", "1", True, 1):
            self.assert_refused("ssd_offload_path must be text", lambda on=on: setup(enable_ssd_offload=on, ssd_offload_path=5))
        self.assert_refused("only a shell expands", lambda: setup(enable_ssd_offload=True, ssd_offload_path="~/kv"))
        with mock.patch.dict(os.environ, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES="10 parsecs"):
            self.assert_refused("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", lambda: setup(enable_ssd_offload=True))
        self.assertEqual(os.listdir(home.name), [])

    def test_setup_accepts_dictionary_of_strings(self):
        client = MooncakeDistributedStore()
        self.addCleanup(client.close)
        self.assertEqual(client.setup({"local_hostname": "host", "global_segment_size": "33554432", "enable_ssd_offload": "false"}), 0)
        self.assertEqual((client.get_hostname(), client._store.opened.memory["arena"]), ("host", 32 << 20))
        for given in ({"quota": 1}, {5: 1}, {"local_hostname": {}}):
            self.assert_refused("is not a parameter of setup", lambda given=given: MooncakeDistributedStore().setup(given))

    def test_each_minus_600_is_logged_once_and_nothing_is_raised(self):
        client = self.client()
        self.assertEqual(client.put("k", b"12345678"), 0)
        self.assert_refused("bytes-like", lambda: client.put("a", "text"))
        self.assert_refused("object has no bytes", lambda: client.put("a", b""))
        self.assert_refused("object has no bytes", lambda: client.batch_put_from(["a"], [self.at], [0]))
        self.assert_refused("longer than", lambda: client.batch_put_from(["a"], [self.at], [8, 8]))
        self.assert_refused("shorter than", lambda: client.batch_get_into_multi_buffers(["a"], [[self.at]], [[]]))
        self.assert_refused("keys=1 memories=0", lambda: client.batch_get_into(["a"], [], []))
        self.assert_refused("not registered", lambda: client.batch_put_from(["a"], [self.at], [-8]))
        self.assert_refused("float", lambda: client.batch_put_from(["a"], [self.at], [8.5]))
        self.assert_refused("int", lambda: client.batch_is_exist([5]))
        self.assert_refused("destination is longer", lambda: client.batch_get_into(["k"], [self.at], [9]))
        self.assert_refused("keys=1 values=0", lambda: client.put_batch(["a"], []))
        self.assert_refused("no memory is registered", lambda: client.unregister_buffer(5))
        self.assert_refused("an address and a length", lambda: client.register_buffer(None, 8))
        self.assert_refused("no memory of this allocator", lambda: MooncakeHostMemAllocator().free(8))
        self.assert_refused("is not set up", lambda: MooncakeDistributedStore().put("a", b"a"))

    def test_repeated_key_has_one_code(self):
        client = self.client()
        self.assertEqual(client.batch_put_from(["d", "e", "d"], [self.at] * 3, [8] * 3), [0, 0, 0])
        self.assertEqual(client.batch_get_into(["d", "d"], [self.at, self.at + 64], [8, 8]), [8, 8])
        self.assertEqual((client.put_batch(["p", "p"], [b"1", b"1"]), client.batch_is_exist(["d", "d", "p"])), (0, [1, 1, 1]))

    def test_unknown_parameters_are_named(self):
        with self.assertRaisesRegex(TypeError, "'quota'"):
            MooncakeDistributedStore().setup("host", quota=3)
        self.assertFalse(hasattr(ReplicateConfig(), "group_ids") or hasattr(ReplicateConfig(), "session_ids"))
        with self.assertLogs(QUIET, "ERROR"):
            self.assertEqual(MooncakeDistributedStore().setup_dummy(1, 1, "127.0.0.1:9"), -600)
            self.assertEqual(MooncakeDistributedStore().batch_is_exist(["a"]), [-600])

    def test_allocator_memory_is_usable(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(10000)
        self.assertEqual(address % 4096, 0)
        ctypes.memset(address, 7, 10000)
        self.assertEqual((allocator.free(address), allocator.free(address)), (0, -600))

    def test_repeated_failures_are_logged_at_intervals(self):
        client = self.client()
        calls = [
            lambda: client.batch_put_from(["a"], [64], [8]),
            lambda: client.batch_get_into(["a"], [64], [8]),
        ]
        for call in calls:
            self.assert_refused("the memory of some objects is not registered objects=1 of=1", lambda call=call: [call() for _ in range(20)][0])
        other = MooncakeDistributedStore()
        self.assert_refused("is not set up", lambda: [other.put("a", b"a") for _ in range(20)][0])

    def test_mooncake_store_module_is_importable(self):
        program = "import mooncake.store as m; print(m.MooncakeDistributedStore.__module__)"
        environment = {**os.environ, "PYTHONPATH": mooncake.path()}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "pagelith.compat.mooncake")
        told = subprocess.run([sys.executable, "-m", "pagelith.compat.mooncake"], capture_output=True, text=True, check=True)
        self.assertEqual(told.stdout.strip(), mooncake.path())
