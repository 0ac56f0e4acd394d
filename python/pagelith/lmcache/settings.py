"""What `adapter_params` of `--l2-adapter` says to this adapter."""

from dataclasses import dataclass

from ..settings import StoreSettings, milliseconds, of_type, threads


@dataclass(frozen=True)
class Settings(StoreSettings):
    """The keys of `adapter_params`."""

    # Longer than elsewhere: LMCache stores behind its own memory, where nobody waits.
    put_wait_ms: int = milliseconds(10000)
    # What LMCache's own `serde` beside `adapter_params` makes of the bytes, with all that they depend on.
    serde: str = of_type(str, "a string", "")
    # Longest that a look-up waits for a store process: a request waits behind it.
    look_timeout_ms: int = milliseconds(1000)
    # How much of that it waits to have what it finds pinned there.
    pin_timeout_ms: int = milliseconds(200)
    # Ends a lock that LMCache left behind.
    lock_ms: int = milliseconds(60000)
    read_threads: int = threads(2)
    write_threads: int = threads(1)
