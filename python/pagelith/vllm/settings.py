"""What `kv_connector_extra_config` says to the connector, and what of vLLM's own configuration it cannot work with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..settings import PoolSettings, number, of_type
from .pools import LAST, WHOLE, spec_of


@dataclass(frozen=True)
class ConnectorSettings(PoolSettings):
    """The keys of the connector."""

    # Longest that a look-up may take, of which the scheduler waits for each.
    exists_timeout_ms: int = number(100)
    # Load in threads, while other requests are computed. Unset: where vLLM takes failures of other loads alone.
    load_async: bool | None = of_type(bool, "true or false", None)
    read_threads: int = number(2)
    # Save in a thread, while the next step is computed.
    save_async: bool = of_type(bool, "true or false", False)
    # Host memory through which caches on a device are copied, for saves and for each reading thread.
    staging_bytes: int = number(256 << 20)
    # Where vLLM's events say that the store is.
    locality: str | None = of_type(str, '"LOCAL" or "REMOTE"', None)


def check(settings: ConnectorSettings, config: Any, cache_config: Any, kinds: Sequence[str]) -> None:
    """All that is wrong, in one error, each with what would be right."""
    parallel, groups, problems = config.parallel_config, cache_config.kv_cache_groups, []
    for name, flag in (
        ("pipeline_parallel_size", "--pipeline-parallel-size"),
        ("prefill_context_parallel_size", "--prefill-context-parallel-size"),
        ("decode_context_parallel_size", "--decode-context-parallel-size"),
    ):
        size = getattr(parallel, name)
        if size > 1:
            problems.append(f"{name!r} is {size}: its slices are not named yet; pass {flag} 1")
    if settings.store is not None and (parallel.world_size > 1 or parallel.distributed_executor_backend not in ("uni", None)):
        problems.append(
            f"'store' is a store in the scheduler's process, and {parallel.world_size} worker(s) of the executor"
            f" {parallel.distributed_executor_backend!r} are processes of their own, of which one alone may write a store: run"
            " `pagelith serve` and pass 'attach': 'unix:PATH', or for one worker pass --distributed-executor-backend uni"
        )
    tier = "use pagelith.vllm.PagelithTier (OffloadingConnector)"
    if not groups:
        problems.append("the model has no groups of caches, so there is nothing to keep")
    unknown = sorted({kind for kind in kinds if kind not in WHOLE + LAST})
    if "mamba" in unknown:
        problems.append(
            "the model has Mamba layers, whose state is no block of tokens: vLLM hands each over in the one step in which it lies still,"
            f" and this connector does not take them; {tier}"
        )
    elif unknown:
        problems.append(f"the model's caches are of the kind {unknown[0]!r}, and this connector knows {', '.join(WHOLE + LAST)}: {tier}")
    for at, group in enumerate(groups):
        if not getattr(group, "enable_kv_transfer", True) or not getattr(spec_of(group), "prefix_cacheable", True):
            problems.append(f"vLLM gives group {at} of the model's caches to no connector, and this one restores all or none: {tier}")
    if settings.load_async is False and (len(groups) > 1 or any(kind in LAST for kind in kinds)):
        problems.append(
            "'load_async' is false, and of a model with windows or several groups of caches vLLM takes failures of loads in threads alone:"
            " leave it out"
        )
    if settings.save_async and getattr(cache_config, "needs_kv_cache_zeroing", False):
        problems.append(
            "'save_async' is true, and of this model vLLM zeroes new blocks before it asks whether they are still read: leave it out"
        )
    if settings.locality not in (None, "LOCAL", "REMOTE"):
        problems.append(f"'locality' is \"LOCAL\" or \"REMOTE\", not {settings.locality!r}")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        problems.append("'calculate_kv_scales' makes scales of each process's own, which no name can say; leave it off")
    if problems:
        raise ValueError("PagelithConnector: " + "; ".join(problems))
