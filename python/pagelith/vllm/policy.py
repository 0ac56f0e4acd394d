"""vLLM's policy for requests with failed loads: every connector that loads from a store logs it at
the start."""

import logging
from typing import Any


def warn_of_failed_loads(log: logging.Logger, transfer: Any) -> None:
    """Warn if vLLM's `kv_transfer_config` has the policy `fail`. It cannot be distinguished from
    the default, so it is no error."""
    if transfer is not None and transfer.is_kv_consumer and getattr(transfer, "kv_load_failure_policy", None) == "fail":
        log.warning(
            "pagelith: a request with a block that cannot be read (damaged, late, or evicted after the lookup) ends with an error and no tokens."
            " To have the block computed instead, pass \"kv_load_failure_policy\": \"recompute\" in --kv-transfer-config kv_load_failure_policy=fail"
        )
