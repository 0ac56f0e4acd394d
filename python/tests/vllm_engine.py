"""The part of a vLLM engine that the connector sees, with stand-ins: its scheduler's connector, its
workers' connectors, and their caches."""

import contextlib
import copy
import hashlib
import os
import subprocess
import sys
import tempfile
import types
import unittest

from vllm_stand_ins import Blocks, Cache, Cached, KVConnectorRole, New, Output, Request, Spec, model_config

from pagelith.vllm import PagelithConnector

# Tokens of a block.
TOKENS = 4
FULL = Spec(TOKENS)
# Fields of the model's configuration that a test may change.
OF_A_MODEL = ("quantization", "revision", "code_revision", "max_model_len", "commit", "dtype")


def window(tokens, size=TOKENS):
    return Spec(size, "sliding_window", sliding_window=tokens)


def hashes(count, of="prompt"):
    return [hashlib.sha256(f"{of}{n}".encode()).digest() for n in range(count)]


def tables_of(ids):
    """A table per group; a single list is the table of the only group."""
    return [list(of) for of in ids] if isinstance(ids, tuple) else [list(ids)]


class AtOnce:
    """An executor whose jobs have ended when they are submitted."""

    def submit(self, body, *arguments):
        body(*arguments)

    def shutdown(self, wait):
        pass


class Recorded:
    """A store that records the requests and depths of its calls, and how long puts wait."""

    def __init__(self, store):
        self._store, self.calls, self.waits = store, [], []

    def __getattr__(self, name):
        body = getattr(self._store, name)
        if name not in ("put", "put_pages", "get"):
            return body

        def call(keys, *given, **how):
            self.calls.append((name, how["request"], how["depth"], len(keys)))
            self.waits += [how["wait"]] if "wait" in how else []
            return body(keys, *given, **how)

        return call

    def take(self):
        calls, self.calls = self.calls, []
        return calls


class Engine:
    """An engine whose cache groups have these specifications."""

    def __init__(self, extra, blocks=64, ranks=1, specs=(FULL,), role="kv_both", **different):
        self.blocks = blocks
        self.all_layers = [[f"group.{at}.layer.{n}" for n in range(2)] if at else ["layer.0", "layer.1"] for at in range(len(specs))]
        self.layers = self.all_layers
        groups = [types.SimpleNamespace(layer_names=names, kv_cache_spec=spec) for names, spec in zip(self.layers, specs)]
        self.cache_config = types.SimpleNamespace(
            kv_cache_groups=groups, num_blocks=blocks, hash_block_size=different.get("hash_tokens"),
            needs_kv_cache_zeroing=different.get("zeroing", False),
        )
        # Tensor-parallel ranks are the inner axis, stages the outer one.
        self.stages = different.get("pipeline", 1)
        ranks *= self.stages
        self.extra, self.ranks, self.role, self.different = extra, ranks, role, different
        self.workers, self.caches, self.tables = [], [], {}
        with contextlib.ExitStack() as undo:
            for rank in range(ranks):
                self.worker(rank)
                undo.callback(self.workers[rank].shutdown)
            self.scheduler = PagelithConnector(self.config(0), KVConnectorRole.SCHEDULER, self.cache_config)
            undo.pop_all()
        tensor = ranks // self.stages
        told = {(rank // tensor, rank % tensor): one.get_handshake_metadata() for rank, one in enumerate(self.workers)}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(told)

    def worker(self, rank):
        # The layers of each stage.
        stage = rank * self.stages // self.ranks
        self.layers = [[f"stage.{stage}{self.different.get('split', '')}.{name}" for name in names] for names in self.all_layers] if self.stages > 1 else self.all_layers
        cache_config = copy.copy(self.cache_config)
        cache_config.kv_cache_groups = [
            types.SimpleNamespace(layer_names=[] if (stage, at) == self.different.get("without") else names, kv_cache_spec=group.kv_cache_spec)
            for at, (names, group) in enumerate(zip(self.layers, self.cache_config.kv_cache_groups))
        ]
        worker = PagelithConnector(self.config(rank), KVConnectorRole.WORKER, cache_config)
        self.workers.append(worker)
        if worker._work._threads is not None and self.different.get("at_once", True):
            worker._work._threads.shutdown(wait=True)
            worker._work._threads = AtOnce()
        shape, order = self.different.get("shape", (self.blocks, 2, TOKENS, 8)), self.different.get("order", (0, 1, 2, 3))
        # Groups share memory, as in vLLM: a block belongs to one group at a time.
        caches = [self.different.get("cache", Cache)(shape, order) for _ in range(2)]
        self.caches.append(caches)
        worker.register_kv_caches({name: cache for names in self.layers for name, cache in zip(names, caches)})

    def config(self, rank):
        get = self.different.get
        backend = types.SimpleNamespace(full_cls_name=lambda: get("backend", "a.Backend"))
        layer = types.SimpleNamespace(get_attn_backend=lambda: backend, isa=get("isa", "vec"))
        recurrent = types.SimpleNamespace(
            **vars(layer), get_state_shape=lambda: get("state_shapes", ((2, 8),)), get_state_dtype=lambda: get("state_types", ("bf16",))
        )
        of_kind = {
            name: recurrent if group.kv_cache_spec.kind == "mamba" else layer
            for names, group in zip(self.layers, self.cache_config.kv_cache_groups) for name in names
        }
        layer._k_scale_float = layer._v_scale_float = get("scale", 1.0)
        sizes = dict(
            tensor_parallel_size=self.ranks // self.stages, prefill_context_parallel_size=get("prefill_context", 1),
            decode_context_parallel_size=get("context", 1), cp_kv_cache_interleave_size=get("interleave", 1),
        )
        return types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(
                kv_connector_extra_config=self.extra, engine_id=get("engine", "engine"),
                kv_load_failure_policy=get("policy", "recompute"), is_kv_consumer=self.role != "kv_producer", is_kv_producer=self.role != "kv_consumer",
            ),
            kv_events_config=types.SimpleNamespace(enable_kv_cache_events=get("events", False)),
            parallel_config=types.SimpleNamespace(
                data_parallel_index=0, rank=rank, world_size=self.ranks, pipeline_parallel_size=self.stages,
                distributed_executor_backend="uni" if self.ranks == 1 else "mp", **sizes,
            ),
            model_config=model_config(
                model=get("model", "a/model"), hf={"rope_theta": get("rope", 10000)}, **{name: get(name) for name in OF_A_MODEL if get(name)}
            ),
            load_config=types.SimpleNamespace(load_format="auto", model_loader_extra_config={}, download_dir=None),
            cache_config=types.SimpleNamespace(
                cache_dtype=get("cache_dtype", "auto"), prefix_caching_hash_algo="sha256", use_replayssm=get("replays", False),
                enable_prefix_caching=get("prefix_caching", True),
                kv_cache_dtype_skip_layers=get("skip_layers", []), mamba_cache_dtype=get("mamba_dtype", "auto"),
            ),
            lora_config=get("lora"),
            speculative_config=get("guesses"),
            compilation_config=types.SimpleNamespace(static_forward_context=of_kind),
        )

    def close(self):
        for connector in (*self.workers, self.scheduler):
            connector.shutdown()

    # The steps of vLLM.

    def begin(self, request, ids, local=0):
        """Look up and allocate; returns the number of external tokens."""
        found, later = self.scheduler.get_num_new_matched_tokens(request, local)
        self.scheduler.update_state_after_alloc(request, Blocks(*tables_of(ids)), found)
        return found, later

    def new(self, request, ids, computed, scheduled=None):
        """The step in which a request is first scheduled."""
        scheduled = request.num_tokens - computed if scheduled is None else scheduled
        return Output([New(request.request_id, tuple(tables_of(ids)), computed)], num_scheduled_tokens={request.request_id: scheduled})

    def again(self, request, computed, scheduled, more=None):
        """A later step of a request, with these new blocks."""
        cached = Cached([request.request_id], set(), [more if more is None else tuple(tables_of(more))], [computed])
        return Output(scheduled_cached_reqs=cached, num_scheduled_tokens={request.request_id: scheduled})

    def step(self, output, compute=None, states=None):
        """Run a step on all workers; returns their report. `states`: by request, the group, block
        and number of tokens of each state that is stable at its end."""
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = tables_of(new.block_ids)
        cached = output.scheduled_cached_reqs
        for name, more in zip(cached.req_ids, cached.new_block_ids):
            for table, ids in zip(self.tables[name], more or ()):
                table += ids
        output.kv_connector_block_state = types.SimpleNamespace(get_block_ids=self.tables.get, boundary_state_offloads=states or {})
        plan = self.scheduler.build_connector_meta(output)
        failed, ended, failed_requests = set(), set(), set()
        for rank, worker in enumerate(self.workers):
            worker.handle_preemptions(plan)
            worker.bind_connector_metadata(plan)
            worker.start_load_kv(None)
            for block, byte in (compute or {}).items():
                for n, cache in enumerate(self.caches[rank]):
                    cache.fill(block, byte + 40 * rank + 90 * n)
            worker.wait_for_save()
            told = worker.get_transfer_results(set())
            ended |= told.finished_recving
            failed_requests |= told.failed_recving
            failed |= worker.get_block_ids_with_load_errors()
            self.scheduler.update_connector_output(types.SimpleNamespace(kv_connector_worker_meta=worker.build_connector_worker_meta()))
        return types.SimpleNamespace(failed=failed, ended=ended, failed_requests=failed_requests)

    def answer(self, request, ids, compute, local=0):
        """Look up, load, compute the rest, and store; returns the number of external tokens."""
        found, later = self.begin(request, ids, local)
        self.loaded = self.step(Output()) if later else None
        self.last = self.step(self.new(request, ids, local + found), compute)
        return found

    def bytes(self, ids, rank=0):
        return [tuple(cache.block(block) for cache in self.caches[rank]) for block in ids]

    @property
    def store(self):
        return self.scheduler._plans._store

    def keys(self, of, pool=0):
        return self.workers[0]._work._keys[pool][0].on_pages(of)


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def extra(self, **given):
        ssd = {"dirs": [os.path.join(self.home.name, "ssd")], "bytes": "128MiB", "segment_bytes": "4MiB"}
        store = {"dram": {"bytes": "32MiB"}, "index": {"max_objects": 20000}, "ssd": ssd}
        return {"store": store, **given}

    def in_step(self, **given):
        """For an engine whose loads end within their step."""
        return {"extra": self.extra(load_async=False, **given), "policy": "fail"}

    def engine(self, extra=None, **different):
        engine = Engine(extra or self.extra(), **different)
        self.addCleanup(engine.close)
        return engine

    def filled(self, count, **different):
        """An engine that has computed and stored `count` blocks, from block 1 on."""
        engine = self.engine(**different)
        ids = list(range(1, count + 1))
        engine.answer(Request("first", count * TOKENS, hashes(count)), ids, {block: block for block in ids})
        return engine

    @contextlib.contextmanager
    def process(self, kept=0):
        """A store process that keeps `kept` events, and the settings to attach to it."""
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        address = "unix:" + os.path.join(self.home.name, f"socket{kept}")
        child = subprocess.Popen(
            [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "1MiB", "--ssd", "0"],
            env={**os.environ, "PAGELITH_EVENTS__MAX": str(kept)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        try:
            self.assertTrue(child.stdout.readline().startswith("listening "))
            # A busy machine may answer late.
            yield {"attach": address, "exists_timeout_ms": 30_000}
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
