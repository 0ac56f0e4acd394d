"""One run of a vLLM engine on the CPU: a tiny model with weights from a seed, prompts, and its
answers.

    python vllm_life.py MODEL_DIR KV_TRANSFER_CONFIG     the directory's name is the model's kind; the second is JSON, or "none"

Prints one line of JSON: for each prompt the tokens and their log-probabilities, and the number of
external prompt tokens. With `VLLM_LIFE_EVENTS`, it prints another line before it: the events of
blocks that vLLM would have published, except those of its own caches. `VLLM_LIFE_PROMPTS` is a file
with other prompts, a list of lists of tokens in JSON. `VLLM_LIFE_OPTIONS` has further arguments of
the engine, in JSON.
"""

import json
import os
import signal
import sys

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONHASHSEED="0", VLLM_LOGGING_LEVEL="WARNING")

import torch  # noqa: E402

# Listed by some virtual CPUs, but faulting there.
for name in ("_is_amx_tile_supported", "_is_amx_fp16_supported"):
    if hasattr(torch.cpu, name):
        setattr(torch.cpu, name, lambda: False)

if "VLLM_LIFE_STAGES" in os.environ:
    # Also in each stage's process, which imports this. A stage receives its input in memory that
    # vLLM allocates during its warm-up, which it omits on CPUs for models that it does not compile.
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    CPUModelRunner.warming_up_model = lambda self: self.profile_run()
    CPUWorker._should_warm_up_model = lambda self: True

BLOCK = 32
PROMPTS = [[(7 * n + 13 * prompt) % 500 + 1 for n in range(10 * BLOCK)] for prompt in range(4)]


SIZES = dict(
    vocab_size=512, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
)
# Two blocks.
WINDOW = 2 * BLOCK


def model(kind):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    if kind == "hybrid":
        # Three cache groups: full attention, and two with windows.
        layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
        more = dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW, layer_types=layers, num_hidden_layers=len(layers))
        return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **more))
    if kind in ("states", "deltas"):
        return recurrent(kind)
    if kind == "windows":
        return MistralForCausalLM(MistralConfig(**SIZES, num_hidden_layers=3, sliding_window=WINDOW))
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=3))


def recurrent(kind):
    """Three cache groups: full attention, and two with recurrent states, of those kinds that vLLM
    computes on CPUs without a GPU kernel."""
    from transformers import Lfm2Config, Lfm2ForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

    if kind == "states":
        # Short convolutions, as in LFM2.
        layers = ["conv", "conv", "full_attention"] * 2
        more = dict(block_auto_adjust_ff_dim=False, conv_dim=128, block_dim=128, block_ff_dim=256)
        return Lfm2ForCausalLM(Lfm2Config(**SIZES, **more, layer_types=layers, num_hidden_layers=len(layers)))
    # Gated delta rules, as in Qwen3-Next, whose states depend on the whole prompt. The number of
    # attention heads makes a block of 32 tokens at least as large as a state.
    layers = ["linear_attention", "linear_attention", "full_attention"] * 2
    heads = dict(num_key_value_heads=4, head_dim=64, linear_key_head_dim=64, linear_value_head_dim=64)
    states = dict(linear_num_key_heads=1, linear_num_value_heads=1)
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    sizes = {**SIZES, **heads, **states, **experts}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**sizes, mlp_only_layers=[0, 1, 2, 3, 4], layer_types=layers, num_hidden_layers=len(layers)))


def make_model(folder):
    torch.manual_seed(1)
    model(os.path.basename(folder)).to(torch.bfloat16).save_pretrained(folder)


def listen(publisher):
    """The events published from here on, each in the form that a subscriber reads."""
    import msgspec

    told, published = [], publisher.publish

    def publish(batch):
        told.extend(event for event in msgspec.msgpack.decode(msgspec.msgpack.encode(batch))[1] if event.get("medium") == "STORAGE")
        published(batch)

    publisher.publish = publish
    return told


def count(scheduler):
    """The requests that are preempted from here on, once for each preemption."""
    preempted, preempt = [], scheduler._preempt_request

    def counted(request, *arguments, **more):
        preempted.append(request.request_id)
        preempt(request, *arguments, **more)

    scheduler._preempt_request = counted
    return preempted


def main(folder, transfer):
    if not os.path.exists(os.path.join(folder, "config.json")):
        make_model(folder)
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig

    more = {} if transfer == "none" else {"kv_transfer_config": KVTransferConfig(**json.loads(transfer))}
    if "VLLM_LIFE_EVENTS" in os.environ:
        more["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    if "VLLM_LIFE_STEP" in os.environ:
        more["max_num_batched_tokens"] = int(os.environ["VLLM_LIFE_STEP"])
    if "VLLM_LIFE_RETAIN" in os.environ:
        more["prefix_cache_retention_interval"] = int(os.environ["VLLM_LIFE_RETAIN"])
    if "VLLM_LIFE_STAGES" in os.environ:
        more |= dict(pipeline_parallel_size=int(os.environ["VLLM_LIFE_STAGES"]), distributed_executor_backend="mp")
    if "VLLM_LIFE_RANKS" in os.environ:
        more |= dict(tensor_parallel_size=int(os.environ["VLLM_LIFE_RANKS"]), distributed_executor_backend="mp")
    known = dict(
        model=folder, skip_tokenizer_init=True, dtype="bfloat16", block_size=BLOCK, max_model_len=512, enforce_eager=True,
        enable_prefix_caching=True, kv_cache_memory_bytes=int(os.environ.get("VLLM_LIFE_CACHE", 64 << 20)), seed=0,
    )
    engine = LLM(**{**known, **more, **json.loads(os.environ.get("VLLM_LIFE_OPTIONS", "{}"))})
    told = listen(engine.llm_engine.engine_core.engine_core.scheduler.kv_event_publisher)
    preempted = count(engine.llm_engine.engine_core.engine_core.scheduler)
    tokens = int(os.environ.get("VLLM_LIFE_TOKENS", 8))
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=1, detokenize=False, ignore_eos=True)
    answers, prompts = [], PROMPTS
    if "VLLM_LIFE_PROMPTS" in os.environ:
        with open(os.environ["VLLM_LIFE_PROMPTS"]) as file:
            prompts = json.load(file)
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts * int(os.environ.get("VLLM_LIFE_ROUNDS", 1))]
    # One after the other by default: equal batches in every run, so equal sums.
    together = len(prompts) if "VLLM_LIFE_TOGETHER" in os.environ else 1
    for at in range(0, len(prompts), together):
        for answer in engine.generate(prompts[at : at + together], sampling, use_tqdm=False):
            output = answer.outputs[0]
            logprobs = [step[token].logprob for step, token in zip(output.logprobs or (), output.token_ids)]
            answers.append({"tokens": list(output.token_ids), "logprobs": logprobs, "cached": answer.num_cached_tokens})
    print(f"requests that were preempted: {len(preempted)}", file=sys.stderr)
    if told:
        print(json.dumps(told), flush=True)
    print(json.dumps(answers), flush=True)
    if os.environ.get("VLLM_LIFE_ENDS") == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
