"""The settings in `adapter_params` of `--l2-adapter`."""

from dataclasses import dataclass

from ..settings import StoreSettings, milliseconds, of_type, threads


@dataclass(frozen=True)
class Settings(StoreSettings):
    """The keys of `adapter_params`."""

    # Longer than for other adapters: LMCache stores in the background, so no request waits.
    put_wait_ms: int = milliseconds(10000)
    # Identifies LMCache's own `serde`, configured next to `adapter_params`, and everything its
    # output depends on.
    serde: str = of_type(str, "a string", "")
    # Longest wait of a lookup for a store process: a request waits meanwhile.
    look_timeout_ms: int = milliseconds(1000)
    # The part of that in which it waits for its pins.
    pin_timeout_ms: int = milliseconds(200)
    # Expiry of a lock that LMCache left behind.
    lock_ms: int = milliseconds(60000)
    read_threads: int = threads(2)
    write_threads: int = threads(1)
