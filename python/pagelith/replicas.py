"""The data-parallel replica that this process belongs to. Each has a store of its own, since only
one process may have a store open."""

def of_sglang() -> int:
    """The index of this rank's replica in SGLang's server."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    # Replicas are parts of one group of ranks with attention data parallelism, and otherwise groups
    # of their own, in which that rank is 0. Without a controller of replicas `dp_rank` is None.
    return int(parallel.attn_dp_rank if parallel.attn_dp_size > 1 else parallel.dp_rank or 0)
