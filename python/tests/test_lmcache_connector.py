"""The connector for LMCache in the engine's process, with stand-ins for LMCache. Tests under
LMCache itself are in `python/clients/`."""

import asyncio
import os
import pickle
import sys
import tempfile
import types
import unittest
from unittest import mock

import lmcache_stand_ins  # noqa: F401


class RemoteMetadata:
    """Length, shapes, types and format of a chunk, serialized with a fixed length."""

    def __init__(self, length, shapes, dtypes, fmt):
        self.length, self.shapes, self.dtypes, self.fmt = length, shapes, dtypes, fmt

    def serialize(self):
        return pickle.dumps((self.length, self.shapes, self.dtypes, self.fmt)).ljust(200, b"\0")

    @staticmethod
    def deserialize(text):
        return RemoteMetadata(*pickle.loads(bytes(text)))


class RemoteConnector:
    remote_metadata_bytes = 200

    def __init__(self, config, metadata):
        self.meta_shapes, self.meta_dtypes, self.meta_fmt = [(2, 4)], ["bf16"], "KV_2LTD"


def stand_in(name, **members):
    module = sys.modules.setdefault(name, types.ModuleType(name))
    module.__dict__.update(members)


stand_in("lmcache.v1.protocol", RemoteMetadata=RemoteMetadata)
stand_in("lmcache.v1.storage_backend")
stand_in("lmcache.v1.storage_backend.connector")
stand_in("lmcache.v1.storage_backend.connector.base_connector", RemoteConnector=RemoteConnector)

from pagelith.identity import ModelError, host  # noqa: E402
from pagelith.identity.host import no_engine  # noqa: E402
from pagelith.lmcache import connector as module  # noqa: E402
from pagelith.lmcache.connector import PREFIX, PagelithConnector  # noqa: E402


def vllms_config(lora=None, prompt_embeds=False, **parallel):
    model = types.SimpleNamespace(enable_prompt_embeds=prompt_embeds)
    return types.SimpleNamespace(parallel_config=types.SimpleNamespace(**parallel), model_config=model, lora_config=lora)


def engine_of(config):
    """The modules of a vLLM worker with this configuration."""
    return {"vllm.config": types.SimpleNamespace(get_current_vllm_config_or_none=lambda: config)}


class Chunk:
    def __init__(self, content):
        self.byte_array = bytearray(content)
        self.held = True

    def get_shapes(self):
        return [(len(self.byte_array),)]

    def get_dtypes(self):
        return ["uint8"]

    def get_memory_format(self):
        return "KV"

    def ref_count_down(self):
        self.held = False


class Memory:
    """LMCache's memory, with room for a number of chunks that nothing evicts."""

    def __init__(self, room=1000):
        self.room, self.given, self.asked = room, [], 0

    def allocate(self, shapes, dtypes, fmt, eviction=True, busy_loop=True):
        self.asked += 1
        if len(self.given) == self.room:
            assert not busy_loop, "LMCache sleeps until there is memory"
            return None
        self.given.append(Chunk(bytes(shapes[0][0])))
        return self.given[-1]


class Key:
    def __init__(self, text):
        self.text = text

    def to_string(self):
        return self.text


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def run_with(self, body, store=None, memory=None, lmcache=None, **given):
        """Run `body` with a connector, in its own event loop."""
        ssd = {"dirs": [os.path.join(self.home.name, "ssd")], "bytes": "64MiB", "segment_bytes": "4MiB"}
        store = {"dram": {"bytes": "16MiB"}, "index": {"max_objects": 1000}, "ssd": ssd} if store is None else store
        metadata = types.SimpleNamespace(model_name="a/model", kv_dtype="bf16", chunk_size=256, worker_id=0, world_size=1)
        memory = types.SimpleNamespace(metadata=metadata, config=None, allocate=(memory or Memory()).allocate)
        given = {"revision": "weights-1", **given}
        extra = {**({PREFIX + "store": store} if store else {}), **{PREFIX + name: value for name, value in given.items()}, "not ours": 1, 7: "nor this"}
        own = {"use_layerwise": False, "enable_async_loading": True, "pre_caching_hash_algorithm": "sha256_cbor", **(lmcache or {})}
        config = types.SimpleNamespace(extra_config=extra, remote_serde="naive", **own)

        async def run():
            connector = PagelithConnector(asyncio.get_running_loop(), memory, config)
            try:
                return await body(connector)
            finally:
                await connector.close()

        return asyncio.run(run())


class Connector(Case):
    def test_repeated_key_is_stored_once_with_the_others(self):
        async def body(connector):
            keys = [Key("a"), Key("a"), Key("b"), Key("a")]
            await connector.batched_put(keys, [Chunk(b"1" * 100), Chunk(b"1" * 100), Chunk(b"2" * 50), Chunk(b"1" * 100)])
            got = await connector.batched_get(keys)
            return connector.batched_contains(keys), [bytes(chunk.byte_array) for chunk in got]

        self.assertEqual(self.run_with(body), (4, [b"1" * 100, b"1" * 100, b"2" * 50, b"1" * 100]))

    def test_empty_or_too_large_chunk_fails_alone(self):
        async def body(connector):
            keys = [Key("none"), Key("much"), Key("b")]
            with self.assertLogs("pagelith.lmcache.connector", "WARNING") as logs:
                await connector.batched_put(keys, [Chunk(b""), Chunk(bytes(5 << 20)), Chunk(b"2" * 50)])
            self.assertIn("for 2 of 3", logs.output[0])
            return [chunk and bytes(chunk.byte_array) for chunk in await connector.batched_get(keys)]

        self.assertEqual(self.run_with(body), [None, None, b"2" * 50])

    async def stored(self, connector, count=4):
        """The keys of chunks that were stored."""
        stored = [Key(str(n)) for n in range(count)]
        await connector.batched_put(stored, [Chunk(bytes([n]) * 100) for n in range(count)])
        return stored

    def test_prompt_larger_than_lmcache_memory_is_read_as_far_as_it_fits(self):
        memory = Memory(room=2)

        async def body(connector):
            return await connector.batched_get(await self.stored(connector))

        got = self.run_with(body, memory=memory)
        self.assertEqual([chunk and bytes(chunk.byte_array) for chunk in got], [bytes(100), b"\1" * 100, None, None])
        self.assertEqual((memory.asked, [chunk.held for chunk in memory.given]), (3, [True, True]))

    def test_asynchronous_load_ends_before_first_unread_chunk(self):
        memory = Memory()

        async def body(connector):
            stored = await self.stored(connector)
            connector.remove_sync(stored[2])
            return await connector.batched_get_non_blocking("a lookup", stored)

        got = self.run_with(body, memory=memory)
        self.assertEqual([bytes(chunk.byte_array) for chunk in got], [bytes(100), b"\1" * 100])
        self.assertEqual(sum(chunk.held for chunk in memory.given), 2)

    def test_failed_allocation_releases_the_others(self):
        memory = Memory()

        async def body(connector):
            stored, allocate = await self.stored(connector), memory.allocate
            with mock.patch.object(connector._memory, "allocate", side_effect=[allocate([[100]], None, None), MemoryError]):
                with self.assertRaises(MemoryError):
                    await connector.batched_get(stored)

        self.run_with(body, memory=memory)
        self.assertEqual([chunk.held for chunk in memory.given], [False])

    def test_each_replica_has_own_directory(self):
        async def body(connector):
            return None

        def opened(engine):
            with mock.patch.dict(sys.modules, {"vllm.config": None, "sglang.srt.runtime_context": None, **engine}):
                self.run_with(body)

        def vllm(replica):
            # Another thread connects again, where the configuration is not set.
            return engine_of(None if replica is None else vllms_config(data_parallel_index=replica))

        def sglang(**ranks):
            return types.SimpleNamespace(
                publish_role=lambda: "scheduler", get_context=lambda: types.SimpleNamespace(is_config_namespace_published=lambda name: True),
                get_parallel=lambda: types.SimpleNamespace(**ranks),
            )

        directories = set()
        with mock.patch.object(module, "model_of_this_process", lambda: no_engine), mock.patch.object(host, "_replica", 0):
            for engine, suffix in (
                ({}, ""), (vllm(0), ""), (vllm(1), "_dp1"), (vllm(None), "_dp1"),
                ({"sglang.srt.runtime_context": sglang(attn_dp_size=1, attn_dp_rank=0, dp_rank=2)}, "_dp2"),
                ({"sglang.srt.runtime_context": sglang(attn_dp_size=4, attn_dp_rank=3, dp_rank=None)}, "_dp3"),
            ):
                opened(engine)
                directories.add(f"lmcache_0of1{suffix}")
                self.assertEqual(set(os.listdir(os.path.join(self.home.name, "ssd"))), directories)

    def test_connector_warns_of_failing_load_policy_at_start(self):
        async def body(connector):
            return None

        for policy, lines in (("fail", 1), ("recompute", 0)):
            transfer = types.SimpleNamespace(is_kv_consumer=True, kv_load_failure_policy=policy)
            with mock.patch.object(module, "vllms_transfer", lambda transfer=transfer: transfer), self.assertLogs("pagelith.lmcache.connector", "WARNING") as logs:
                module.logger.warning("nothing")
                self.run_with(body)
            self.assertEqual(len(logs.output) - 1, lines)
            for line in logs.output[1:]:
                self.assertRegex(line, '"kv_load_failure_policy": "recompute".*kv_load_failure_policy=fail$')

    def assert_refused(self, error, words, engine=None, **lmcache):
        async def body(connector):
            self.fail("a connection was made")

        with mock.patch.dict(sys.modules, engine_of(engine)), self.assertRaisesRegex(error, words):
            self.run_with(body, lmcache=lmcache)
        self.assertEqual(os.listdir(self.home.name), [])
        self.assertEqual(host._identified, {})

    def test_vllm_without_asynchronous_loading_is_refused(self):
        self.assert_refused(ValueError, "'enable_async_loading' is false.*set enable_async_loading: true", vllms_config(), enable_async_loading=False)

    def test_hash_that_differs_in_each_process_is_refused(self):
        for seed in ({}, {"PYTHONHASHSEED": "random"}):
            with mock.patch.dict(os.environ, seed):
                if not seed:
                    os.environ.pop("PYTHONHASHSEED", None)
                self.assert_refused(ValueError, "'builtin'.*set pre_caching_hash_algorithm: sha256_cbor", vllms_config(), pre_caching_hash_algorithm="builtin")
        with mock.patch.dict(os.environ, {"PYTHONHASHSEED": "0"}):
            self.assert_refused(ValueError, "'enable_async_loading'", vllms_config(), pre_caching_hash_algorithm="builtin", enable_async_loading=False)

    def test_loading_by_layer_is_refused(self):
        self.assert_refused(ValueError, "'use_layerwise' is true.*set use_layerwise: false", use_layerwise=True)

    def test_vllm_with_bytes_that_keys_do_not_name_is_refused(self):
        self.assert_refused(ModelError, "'lora_config' is set.*--enable-lora.*PagelithOffloadingConnector", vllms_config(lora=object()))
        self.assert_refused(ModelError, "'enable_prompt_embeds' is true.*--enable-prompt-embeds", vllms_config(prompt_embeds=True))

    def test_settings_of_wrong_type_are_named_and_nothing_is_created(self):
        async def body(connector):
            return None

        with self.assertRaisesRegex(Exception, "ssd.dirs: must be a list"):
            self.run_with(body, store={"ssd": {"dirs": os.path.join(self.home.name, "kv"), "bytes": "64MiB"}})
        with self.assertRaisesRegex(ValueError, "'look_timeout_ms' must be a whole number"):
            self.run_with(body, look_timeout_ms="1s")
        self.assertEqual(os.listdir(self.home.name), [])
