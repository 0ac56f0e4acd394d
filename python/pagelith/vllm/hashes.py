"""vLLM's block hashes."""


def page_of(block_hash: bytes) -> bytes | str:
    """The page for a block hash of any length."""
    return block_hash if len(block_hash) == 32 else f"vllm block {block_hash.hex()}"
