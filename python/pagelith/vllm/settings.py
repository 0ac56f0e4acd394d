"""The connector's settings in `kv_connector_extra_config`, and the check of vLLM's configuration
against its limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from ..settings import PoolSettings, milliseconds, number, of_type, threads
from .pools import LAST, STATE, WHOLE, spec_of, specs_of


@dataclass(frozen=True)
class ConnectorSettings(PoolSettings):
    """The keys of the connector."""

    # Longest lookup; the scheduler waits for each.
    exists_timeout_ms: int = milliseconds(100)
    # Load on threads, concurrently with other requests. vLLM recomputes a failed load correctly
    # only then: a load within a step may leave tokens of the next one, computed on its blocks.
    load_async: bool = of_type(bool, "true or false", True)
    read_threads: int = threads(2)
    # Save on a thread, concurrently with the next step.
    save_async: bool = of_type(bool, "true or false", False)
    # Let the store copy to and from a device. Default: where its memory is page-locked and it can;
    # otherwise torch copies.
    device_pieces: bool | None = of_type(bool, "true or false", None)
    # Host memory through which a device's caches are copied: by torch, for saves and for each reading
    # thread; or all that the link to a store process has.
    staging_bytes: int = number(256 << 20)
    # The locality of the store in vLLM's events.
    locality: str | None = of_type(str, '"LOCAL" or "REMOTE"', None)

    @property
    def wants_device_pieces(self) -> bool | None:
        """Whether the store must, or must not, copy to and from a device; `None`: if it can."""
        # A link to a store process locks its memory.
        dram = (self.store or {}).get("dram", {})
        locked = self.attach is not None or (isinstance(dram, dict) and dram.get("pin", "off") != "off")
        return self.device_pieces if self.device_pieces is not None or locked else False


def check(settings: ConnectorSettings, config: Any, cache_config: Any, kinds: Sequence[str]) -> None:
    """Raise one error that lists all problems, each with its remedy."""
    parallel, groups, problems = config.parallel_config, cache_config.kv_cache_groups, []
    if parallel.prefill_context_parallel_size > 1:
        problems.append(
            f"'prefill_context_parallel_size' is {parallel.prefill_context_parallel_size}: it is unknown which rank has which tokens of a block;"
            " pass --prefill-context-parallel-size 1"
        )
    policy = config.kv_transfer_config.kv_load_failure_policy
    if not settings.load_async and policy != "fail":
        problems.append(
            f"'load_async' is false and 'kv_load_failure_policy' is {policy!r}, but vLLM recomputes failed loads correctly only if they are"
            " asynchronous: leave 'load_async' out"
        )
    if not settings.load_async and parallel.world_size > 1:
        problems.append(
            f"'load_async' is false, but with {parallel.world_size} workers a failed load on one invalidates the results of the others in that step:"
            " leave it out"
        )
    if settings.store is not None and (parallel.world_size > 1 or parallel.distributed_executor_backend not in ("uni", None)):
        problems.append(
            f"'store' is a store in the scheduler's process, and {parallel.world_size} worker(s) of the executor"
            f" {parallel.distributed_executor_backend!r} are separate processes, and only one process may write a store: run"
            " `pagelith serve` and pass 'attach': 'unix:PATH', or for one worker pass --distributed-executor-backend uni"
        )
    tier = "use pagelith.vllm.PagelithTier (OffloadingConnector)"
    if not groups:
        problems.append("the model has no cache groups, so there is nothing to store")
    unknown = sorted({kind for kind in kinds if kind not in WHOLE + LAST + STATE})
    if unknown:
        problems.append(f"the model's caches have the kind {unknown[0]!r}, but this connector supports {', '.join(WHOLE + LAST + STATE)}: {tier}")
    problems += _of_states(config, groups, kinds)
    for at, group in enumerate(groups):
        if not getattr(group, "enable_kv_transfer", True) or not getattr(spec_of(group), "prefix_cacheable", True):
            problems.append(f"vLLM gives cache group {at} to no connector, and this connector restores all groups or none: {tier}")
    if not settings.load_async and (len(groups) > 1 or any(kind in LAST + STATE for kind in kinds)):
        problems.append(
            "'load_async' is false, but for a model with windows, states or several cache groups vLLM handles failed loads only if they are asynchronous:"
            " leave it out"
        )
    if settings.save_async and any(kind in STATE for kind in kinds):
        problems.append("'save_async' is true, but the next step overwrites a recurrent state in its block while it would still be read: leave it out")
    elif settings.save_async and getattr(cache_config, "needs_kv_cache_zeroing", False):
        problems.append(
            "'save_async' is true, but for this model vLLM zeroes new blocks before it waits for saves that still read them: leave it out"
        )
    if settings.locality not in (None, "LOCAL", "REMOTE"):
        problems.append(f"'locality' must be \"LOCAL\" or \"REMOTE\", not {settings.locality!r}")
    problems += _of_caches(config, groups)
    if problems:
        raise ValueError("PagelithConnector: " + "; ".join(problems))


def check_caches(config: Any, groups: Sequence[Any]) -> None:
    """The check for vLLM's offloading connector."""
    problems = list(_of_caches(config, groups))
    if problems:
        raise ValueError("PagelithOffloadingConnector: " + "; ".join(problems))


def _of_caches(config: Any, groups: Sequence[Any]) -> Iterator[str]:
    """Problems with caches whose blocks depend on more than their hashes."""
    without = "start vLLM without --kv-transfer-config"
    if not config.cache_config.enable_prefix_caching:
        yield (
            "'enable_prefix_caching' is false, and block hashes then may not contain a prompt's images: pass --enable-prefix-caching, or if vLLM's log"
            f" says that it disabled prefix caching for this model, {without}"
        )
    for at, group in enumerate(groups):
        specs = specs_of(group)
        if any(getattr(spec, "non_causal", False) for spec in specs):
            yield f"cache group {at} has 'non_causal' true: its blocks depend on tokens after them, which no key contains; {without}"
        lengths = [length for spec in specs if (length := getattr(spec, "rswa_window", None)) is not None]
        if lengths:
            yield f"cache group {at} has 'rswa_window' {lengths[0]}: its blocks depend on the end of the prompt, which no key contains; {without}"
    if getattr(config.cache_config, "calculate_kv_scales", False):
        yield "'calculate_kv_scales' computes scales per process, which no key can contain; disable it"


def _of_states(config: Any, groups: Sequence[Any], kinds: Sequence[str]) -> Iterator[str]:
    """Problems with a model that has recurrent layers."""
    specs = [spec_of(group) for group, kind in zip(groups, kinds, strict=True) if kind in STATE]
    if not specs:
        return
    if any(spec.mamba_cache_mode != "align" for spec in specs):
        yield "vLLM keeps this model's recurrent states only for their own request: pass --enable-prefix-caching, with --mamba-cache-mode align"
        return
    page = lcm(*(int(spec_of(group).block_size) for group in groups))
    if any(int(spec.block_size) != page for spec in specs):
        yield (
            f"a recurrent state has blocks of {specs[0].block_size} tokens, but blocks of all groups end together every {page} tokens: states are stored at"
            " such ends only; pass equal --mamba-block-size and --block-size"
        )
    if getattr(config, "speculative_config", None) is not None or any(getattr(spec, "num_speculative_blocks", 0) for spec in specs):
        yield "the model has recurrent layers and uses speculative decoding, whose states vLLM moves after the step that computed them: remove --speculative-config"
    if getattr(config.cache_config, "use_replayssm", False):
        yield "'use_replayssm' stores inputs in place of states, without their number in the block: remove --use-replayssm"
