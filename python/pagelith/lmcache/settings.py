"""What `adapter_params` of `--l2-adapter` says to this adapter."""

from dataclasses import dataclass

from ..settings import StoreSettings, number, of_type


@dataclass(frozen=True)
class Settings(StoreSettings):
    """The keys of `adapter_params`."""

    # Longer than elsewhere: LMCache stores behind its own memory, where nobody waits.
    put_wait_ms: int = number(10000)
    # What LMCache's own `serde` beside `adapter_params` makes of the bytes, with all that they depend on.
    serde: str = of_type(str, "a string", "")
    # Longest that a look-up waits for a store process: a request waits behind it.
    look_timeout_ms: int = number(1000)
    # How much of that it waits to have what it finds pinned there.
    pin_timeout_ms: int = number(200)
    # Ends a lock that LMCache left behind.
    lock_ms: int = number(60000)
    read_threads: int = number(2)
    write_threads: int = number(1)
