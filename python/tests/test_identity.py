"""The fingerprint of a model: equal in every process, different for any different fact, and unknown
if a fact is missing."""

import dataclasses
import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import vllm_stand_ins as vllm

from pagelith.identity import Identity, ModelError, admit
from pagelith.identity import host
from pagelith.identity.facts import Reader, digest, plain
from pagelith.identity.vllm import identify
from pagelith.identity.weights import files_of, weights_of


@dataclasses.dataclass
class Config:
    layers: object


class Kind(enum.Enum):
    FULL = 1


class Facts(unittest.TestCase):
    def test_equal_configurations_have_equal_facts_in_every_process(self):
        program = (
            "from pagelith.identity.facts import digest\nclass Quantized: pass\none = Quantized()\none.bits = {'w': 4}\n"
            "print(digest({'b': {'x', 'y', 'z', 1}, 'a': one, 2: (1.5, None)}))"
        )
        said = set()
        for seed in "01234":
            environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
            said.add(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout)
        self.assertEqual(len(said), 1, said)

    def test_different_facts_have_different_digests(self):
        facts = [
            {"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": None}, {"a": True}, {"b": 1}, {"a": [1]}, {"a": {"c": 1}}, {"a": Config(1)}, {"a": Config(2)},
            {"a": Kind.FULL}, {"a": len}, {"a": max}, {"a": b"1"},
        ]
        self.assertEqual(len({digest(one) for one in facts}), len(facts))

    def test_facts_exclude_origin_of_configuration(self):
        read_from = lambda folder: types.SimpleNamespace(to_dict=lambda: {"rope": 1, "text": {"_name_or_path": folder}, "_name_or_path": folder})  # noqa: E731
        self.assertEqual(plain(read_from("/a")), {"rope": 1, "text": {}})

    def test_unreadable_fact_is_unknown_and_requires_revision(self):
        reader = Reader()
        reader.read("length", lambda: {}["length"])
        reader.read("rope", lambda: 1)
        identity = reader.identity()
        self.assertEqual((identity.facts, identity.unknown), ({"length": "unknown", "rope": 1}, ("length",)))
        with self.assertRaisesRegex(ValueError, "the place: pagelith cannot identify length,.*set 'revision' to a text"):
            admit(identity, "", "the place")

    def test_facts_are_logged_once(self):
        identity = Identity({"rope": 7, "long": "x" * 200})
        with self.assertLogs("pagelith.identity", "INFO") as said:
            for _ in range(3):
                admit(identity, "mine", "the place")
        self.assertEqual(len(said.output), 1)
        for words in (identity.fingerprint, "revision='mine'", "rope=7", "long=sha256:"):
            self.assertIn(words, said.output[0])


class Weights(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    def folder(self, name, tensors=3, changed=None, length=4 << 20):
        """A directory with a model whose tensors are too long to be read whole."""
        folder = os.path.join(self.home, name)
        os.makedirs(folder, exist_ok=True)
        offsets = {f"t{n}": {"dtype": "U8", "shape": [length], "data_offsets": [n * length, (n + 1) * length]} for n in range(tensors)}
        table = json.dumps(offsets).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(len(table).to_bytes(8, "little") + table)
            for n in range(tensors):
                file.write((b"y" if n == changed else b"x") * length)
        return folder

    def test_weights_digest_depends_on_bytes_not_path_or_time(self):
        first = files_of(self.folder("a"))
        os.utime(os.path.join(self.home, "a", "model.safetensors"), (1, 1))
        self.assertEqual((files_of(self.folder("b")), files_of(os.path.join(self.home, "a"))), (first, first))
        others = [files_of(self.folder("b", changed=n)) for n in range(3)] + [files_of(self.folder("b", tensors=2))]
        self.assertEqual(len({first, *others}), 5)

    def test_weights_digest_depends_on_code_and_scales(self):
        folder = self.folder("a")
        found = {files_of(folder)}
        names = ("config.json", "modeling.py", "hf_quant_config.json", "model.bin", "adapter_config.json", "preprocessor_config.json", "a/model.bin", "b/x.py")
        for n, name in enumerate(names):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w") as file:
                file.write("something")
            found.add(files_of(folder))
            self.assertEqual(len(found), n + 2, name)
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            file.write("nothing that a cache depends on")
        self.assertIn(files_of(folder), found)

    def test_weights_digest_depends_on_relative_paths(self):
        folder = os.path.join(self.home, "a")
        os.makedirs(os.path.join(folder, "layer_0"))
        os.makedirs(os.path.join(folder, ".git"))
        for name in ("layer_0/w.bin", ".git/w.bin"):
            with open(os.path.join(folder, name), "w") as file:
                file.write(name)
        first = files_of(folder)
        self.assertIsNotNone(first)
        # A loop of symbolic links ends, and hidden files are not part of the model.
        os.symlink(folder, os.path.join(folder, "layer_0", "loop"))
        shutil.rmtree(os.path.join(folder, ".git"))
        self.assertEqual(files_of(folder), first)
        os.rename(os.path.join(folder, "layer_0"), os.path.join(folder, "layer_1"))
        self.assertNotEqual(files_of(folder), first)

    def test_long_weights_file_without_table_is_sampled(self):
        path = os.path.join(self.home, "model.gguf")
        found = set()
        for byte in (b"x", b"y"):
            with open(path, "wb") as file:
                file.write(b"x" * (8 << 20) + byte * (4 << 20))
            found.add(weights_of(path, None, "auto"))
        self.assertEqual(len(found), 2)

    def test_unidentified_weights_are_unknown(self):
        empty = os.path.join(self.home, "empty")
        os.mkdir(empty)
        with open(os.path.join(empty, "config.json"), "w") as file:
            file.write("{}")
        for model, load_format, commit, known in (
            (empty, "auto", None, None), ("somebody/model", "auto", None, None), ("somebody/model", "auto", "c" * 40, f"somebody/model@{'c' * 40}"),
            (self.folder("a"), "tensorizer", None, None), ("somebody/model", "remote", "c" * 40, None), ("somebody/model", "dummy", None, "dummy"),
        ):
            self.assertEqual(weights_of(model, None, load_format, commit), known, (model, load_format))


class VllmModels(unittest.TestCase):
    def test_different_models_have_different_fingerprints(self):
        draft = vllm.model_config(model="a/draft")
        speculates = lambda draft, **more: types.SimpleNamespace(method="eagle", draft_model_config=draft, **more)  # noqa: E731
        group = lambda **of: types.SimpleNamespace(kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(**of))])  # noqa: E731
        configs = [
            vllm.vllm_config(),
            *(vllm.vllm_config(vllm.model_config(**model)) for model in (
                {"hf": {"rope_parameters": {"rope_type": "linear"}}}, {"hf": {"quantization_config": {"bits": 4}}}, {"dtype": "fp16"}, {"revision": "2"},
                {"code_revision": "2"}, {"quantization": "fp8"}, {"quantization_config": {"ignore": ["x"]}}, {"max_model_len": 8192}, {"commit": "d" * 40},
                {"a_field_that_is_new": 1},
            )),
            *(vllm.vllm_config(cache=cache) for cache in (
                {"cache_dtype": "fp8"}, {"kv_cache_dtype_skip_layers": ["0"]}, {"mamba_cache_dtype": "float32"}, {"mamba_ssm_cache_dtype": "float32"},
                {"a_field_that_is_new": 1},
            )),
            vllm.vllm_config(attention_config=types.SimpleNamespace(backend="FLASHINFER")),
            vllm.vllm_config(additional_config={"layout": 2}),
            vllm.vllm_config(load={"load_format": "dummy"}),
            vllm.vllm_config(load={"model_loader_extra_config": {"from": "b"}}),
            vllm.vllm_config(speculative_config=speculates(None)),
            vllm.vllm_config(speculative_config=speculates(None, kv_cache_dtype="fp8")),
            vllm.vllm_config(speculative_config=speculates(draft)),
            vllm.vllm_config(speculative_config=speculates(vllm.model_config(model="a/draft", commit="d" * 40))),
            vllm.vllm_config(speculative_config=speculates(vllm.model_config(model="a/draft", quantization="fp8"))),
        ]
        identities = [identify(config) for config in configs]
        groups = (
            {"dtype": "bf16", "kv_quant_mode": 0}, {"dtype": "fp8", "kv_quant_mode": 0}, {"dtype": "bf16", "kv_quant_mode": 1},
            {"dtype": "bf16", "num_head_slots": 2}, {"shapes": ((4, 8),)}, {"shapes": ((8, 4),)}, {"dtypes": ("bf16", "fp32")}, {"dtypes": ("fp32", "bf16")},
            {"mamba_type": Kind.FULL},
        )
        identities += [identify(configs[0], group(**fields)) for fields in groups]
        identities.append(identify(configs[0], sizes=True))
        for partition in ("11,11,10", "10,11,11"):
            with mock.patch.dict(os.environ, {"VLLM_PP_LAYER_PARTITION": partition}):
                identities.append(identify(configs[0], sizes=True))
        for name, value in (("__version__", "0.34.0"), ("platforms", types.SimpleNamespace(current_platform=mock.Mock(device_type="rocm")))):
            with mock.patch.object(sys.modules["vllm"], name, value, create=True), mock.patch.dict(
                sys.modules, {"vllm.platforms": value} if name == "platforms" else {}
            ):
                identities.append(identify(configs[0]))
        quantized = os.path.join(tempfile.mkdtemp(), "online.json")
        self.addCleanup(shutil.rmtree, os.path.dirname(quantized))
        with open(quantized, "w") as file:
            file.write('{"bits": 4}')
        for name, value in (
            ("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1"), ("VLLM_SSM_CONV_STATE_LAYOUT", "DS"), ("VLLM_HUMMING_INPUT_QUANT_CONFIG", "{}"),
            ("VLLM_HUMMING_ONLINE_QUANT_CONFIG", '{"bits": 4}'), ("VLLM_HUMMING_ONLINE_QUANT_CONFIG", quantized), ("VLLM_SOME_NEW_LAYOUT", "1"),
        ):
            with mock.patch.dict(os.environ, {name: value}):
                identities.append(identify(configs[0]))
        with open(quantized, "w") as file:
            file.write('{"bits": 8}')
        with mock.patch.dict(os.environ, {"VLLM_HUMMING_ONLINE_QUANT_CONFIG": quantized}):
            identities.append(identify(configs[0]))
        self.assertEqual({identity.unknown for identity in identities}, {()})
        self.assertEqual(len({identity.fingerprint for identity in identities}), len(identities))

    def test_irrelevant_differences_keep_fingerprint(self):
        same = identify(vllm.vllm_config()).fingerprint
        for other in (
            vllm.vllm_config(vllm.model_config(served_model_name="other", max_logprobs=5, tokenizer="other")),
            vllm.vllm_config(cache={"gpu_memory_utilization": 0.5, "num_gpu_blocks": 7}),
            vllm.vllm_config(parallel_config=types.SimpleNamespace(tensor_parallel_size=2)),
        ):
            self.assertEqual(identify(other).fingerprint, same)
        with mock.patch.dict(os.environ, {"VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_PORT": "5000", "MY_LAYOUT": "1"}):
            self.assertEqual(identify(vllm.vllm_config()).fingerprint, same)

    def test_weights_missing_in_configuration_are_unknown(self):
        for config, unknown in (
            (vllm.vllm_config(vllm.model_config(commit=None)), ("model.weights",)),
            # A commit of the configuration only, and weights from an object store.
            (vllm.vllm_config(vllm.model_config(hf_config_path="another/model")), ("model.weights",)),
            (vllm.vllm_config(vllm.model_config(model_weights="s3://bucket/model")), ("model.weights",)),
            (vllm.vllm_config(load={"load_format": "runai_streamer"}), ("model.weights",)),
            (vllm.vllm_config(lora_config=types.SimpleNamespace(lora_dtype="auto")), ("weights of LoRA adapters",)),
        ):
            self.assertEqual(identify(config).unknown, unknown)


class ProcessModels(unittest.TestCase):
    def setUp(self):
        for patch in (mock.patch.dict(sys.modules, {"vllm.config": None, "sglang.srt.runtime_context": None}), mock.patch.dict(host._identified, clear=True)):
            patch.start()
            self.addCleanup(patch.stop)

    def ask(self, config=None, works=False):
        """The identity in a process while vLLM's configuration is `config`; with `works`, the
        process is a vLLM worker."""
        modules = {
            "vllm.config": types.SimpleNamespace(get_current_vllm_config_or_none=lambda: config),
            "vllm.distributed.parallel_state": types.SimpleNamespace(model_parallel_is_initialized=lambda: works),
        }
        with mock.patch.dict(sys.modules, modules):
            return host.model_of_this_process()()

    def test_vllm_worker_keeps_model_for_repeated_connection(self):
        known = self.ask(vllm.vllm_config(), works=True)
        self.assertEqual((known.identity.unknown, known.stale), ((), False))
        # Another thread makes the connection, where the configuration is not set.
        self.assertEqual(self.ask(works=True), known)
        self.assertEqual(self.ask(vllm.vllm_config(), works=True), known)
        self.assertEqual(self.ask(works=True), known)

    def test_vllm_worker_without_configuration_is_refused(self):
        with self.assertRaisesRegex(ModelError, "configuration"):
            self.ask(works=True)

    def test_process_with_two_models_needs_current_configuration(self):
        for config in (vllm.vllm_config(), vllm.vllm_config(vllm.model_config(dtype="fp16"))):
            self.ask(config, works=True)
        with self.assertRaisesRegex(ModelError, "configuration"):
            self.ask(works=True)

    def test_process_without_engine_has_unknown_model(self):
        for now in (host.model_of_this_process()(), self.ask()):
            self.assertEqual((now.identity.unknown, now.stale), (("which engine and model it is for",), False))


if __name__ == "__main__":
    unittest.main()
