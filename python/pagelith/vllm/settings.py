"""What `kv_connector_extra_config` says to the connector, and what of vLLM's own configuration it cannot work with."""

from dataclasses import dataclass
from typing import Any

from ..settings import PoolSettings, number, of_type

# Kinds of caches (vLLM's names) of which each block stands for its tokens alone.
_KINDS = ("full_attention", "mla_attention", "sliding_window")


@dataclass(frozen=True)
class ConnectorSettings(PoolSettings):
    """The keys of the connector."""

    # Longest that a look-up may take, of which the scheduler waits for each.
    exists_timeout_ms: int = number(100)
    # Load in threads, while other requests are computed.
    load_async: bool = of_type(bool, "true or false", False)
    read_threads: int = number(2)
    # Host memory through which caches on a device are copied, for saves and for each reading thread.
    staging_bytes: int = number(256 << 20)


def check(settings: ConnectorSettings, config: Any, groups: Any, kind: str) -> None:
    """All that is wrong, in one error, each with what would be right."""
    parallel, problems = config.parallel_config, []
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
    if len(groups) != 1:
        problems.append(
            f"the model has {len(groups)} groups of caches, whose blocks would have to be restored together, and this connector"
            " restores one: pass --disable-hybrid-kv-cache-manager where all layers are attention, else use"
            " pagelith.vllm.PagelithTier (OffloadingConnector)"
        )
    elif kind not in _KINDS:
        problems.append(
            f"the model's caches are of the kind {kind!r}, and this connector knows {', '.join(_KINDS)}: use"
            " pagelith.vllm.PagelithTier (OffloadingConnector)"
        )
    if getattr(config.cache_config, "calculate_kv_scales", False):
        problems.append("'calculate_kv_scales' makes scales of each process's own, which no name can say; leave it off")
    if problems:
        raise ValueError("PagelithConnector: " + "; ".join(problems))
