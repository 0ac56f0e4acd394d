"""Settings that engines' configurations pass to all adapters: their keys, types, and contradictions
among them."""

import logging
import os
import pathlib
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ._native import PagelithError, Registration, Store, UnavailableError
from .failures import Failures
from .shared import share

logger = logging.getLogger(__name__)

# Longest secret file.
_SECRET_BYTES_MAX = 64 << 10
# Longest secret.
_RAW_BYTES_MAX = 64
# A secret as in a key file.
_DIGITS = re.compile(rb"[0-9A-Fa-f]{64}\s*")

_Settings = TypeVar("_Settings", bound="StoreSettings")


def of_type(kind: type, words: str, default: Any) -> Any:
    """A key whose value has this type, described by `words` in errors."""
    return field(default=default, metadata={"kind": kind, "words": words})


def path(words: str, prefix: str = "") -> Any:
    """A key whose value is a string, or a path, which is prefixed with `prefix`."""
    return field(default=None, metadata={"kind": str, "words": words, "prefix": prefix})


def number(default: int, most: int = 1 << 40) -> Any:
    """A key whose value is an integer from 1 to `most`."""
    return field(default=default, metadata={"kind": int, "words": f"a whole number, at least 1 and at most {most}", "most": most})


def milliseconds(default: int) -> Any:
    """A key that bounds a wait. It has the range of a store's `deadline_ms`."""
    return number(default, 3_600_000)


def threads(default: int) -> Any:
    """A key whose value is a number of threads."""
    return number(default, 1024)


@dataclass(frozen=True)
class StoreSettings:
    """The store, and the namespace of its pages. Adapters derive their own settings from it."""

    # Settings of an embedded store, as in docs/operations.md.
    store: dict[str, Any] | None = of_type(dict, "a dictionary", None)
    # Instead of `store`: a store process, `unix:PATH`, `tcp:HOST:PORT`, `rdma:HOST:PORT`, or the path
    # of a socket.
    attach: str | None = path("a string, or the path of a socket", "unix:")
    # How payload travels over `tcp:`: "tcp", "rdma" (as the address `rdma:`: the store process must have
    # it too), or "auto" (RDMA where both have it). The devices are those of PAGELITH_RDMA__DEVICES.
    transport: str | None = of_type(str, "a string", None)
    # Where the store process requires authentication: the key's name, and a key file with it, or a
    # file with its secret only.
    key_name: str | None = of_type(str, "a string", None)
    key_file: str | None = path("a string or a path")
    # Start the engine while that process is down: nothing is found or stored until it is up.
    start_without_store: bool = of_type(bool, "true or false", False)
    # Separate pages, in addition to the engine's facts about the model.
    tenant: str = of_type(str, "a string", "")
    revision: str = of_type(str, "a string", "")
    # Longest wait of a write for space in a full store, and of a read for its bytes.
    put_wait_ms: int = milliseconds(50)
    get_timeout_ms: int = milliseconds(30000)

    @classmethod
    def read(cls: type[_Settings], where: str, given: Mapping[str, Any]) -> _Settings:
        """The settings. One error reports all problems, and `where` the settings come from."""
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} for pagelith must be a dictionary, not {given!r}")
        known = {f.name: f for f in fields(cls)}
        given = {name: _text(known[name].metadata, value) if name in known else value for name, value in given.items()}
        problems = [f"{name!r} is an unknown key (known keys: {', '.join(known)})" for name in given if name not in known]
        for name, value in given.items():
            about = known[name].metadata if name in known else {}
            if "kind" in about and not _is(about, value):
                problems.append(f"{name!r} must be {about['words']}, not {value!r}")
        settings = cls(**{name: value for name, value in given.items() if name in known})
        problems += settings._contradictions()
        if problems:
            raise ValueError(f"{where} for pagelith: " + "; ".join(problems))
        return settings

    def _contradictions(self) -> list[str]:
        problems = []
        if (self.store is None) == (self.attach is None):
            problems.append("pass 'store' (a store in this process) or 'attach' (a store process), one of the two")
        if (self.key_name is None) != (self.key_file is None) or (self.key_name and not self.attach):
            problems.append("'key_name' and 'key_file' go together, and require 'attach'")
        if self.transport is not None and not self.attach:
            problems.append("'transport' requires 'attach'")
        if self.start_without_store and not self.attach:
            problems.append("'start_without_store' requires 'attach': a store in this process opens or fails at the start")
        return problems

    def open(self, part: str, events_max: int = 0) -> Store:
        """Open the store. An embedded one uses the directories named `part`, and keeps `events_max`
        events, unless `store` says otherwise.

        `Store` validates the content of `store`, before it creates anything.
        """
        if self.attach is not None:
            return self._attached(self.attach)
        store = dict(self.store or {})
        events = store.get("events", {})
        if events_max and isinstance(events, dict):
            store["events"] = {"max": events_max, **events}
        return Store(store, subdirectory=part)

    def _attached(self, address: str) -> Store:
        try:
            return Store.attach(address, key=self._key(), may_be_down=self.start_without_store, transport=self.transport)
        except UnavailableError as error:
            remedy = "start it (`pagelith serve`), or set 'start_without_store': true to serve without it until it is up"
            raise UnavailableError(f"{error}: the store process is unavailable: {remedy}") from error

    @property
    def asks_processes(self) -> bool:
        """Whether a lookup may wait for another process: a store process, or an embedded store's
        peers."""
        remote = (self.store or {}).get("remote")
        peers = remote.get("peers") if isinstance(remote, Mapping) else None
        return bool(self.attach is not None or peers or os.environ.get("PAGELITH_REMOTE__PEERS"))

    def failures(self, log: logging.Logger) -> Failures:
        """Log lines about failures of this store, in an adapter's log."""
        return Failures(log, self.attach)

    def _key(self) -> tuple[str, bytes | os.PathLike[str]] | None:
        """The key's name, and its secret or the path of a key file."""
        if self.key_name is None or self.key_file is None:
            return None
        try:
            content = _secret(self.key_file)
        except OSError as error:
            raise ValueError(f"'key_file' cannot be read: {error}") from error
        if _DIGITS.fullmatch(content):
            return self.key_name, bytes.fromhex(content.decode())
        # Not stripped: random bytes may end in any of them. A longer file is an entry of `pagelith key`.
        return self.key_name, content if len(content) <= _RAW_BYTES_MAX else pathlib.Path(self.key_file)


@dataclass(frozen=True)
class PoolSettings(StoreSettings):
    """The same, for adapters that get the engine's host memory from the engine."""

    # Look up and pin the pages of that memory once, if an embedded store reads into it from SSD, or a
    # store process by RDMA.
    register_memory: bool = of_type(bool, "true or false", True)

    def register(self, store: Store, spans: Iterable[tuple[int, int]]) -> list[Registration]:
        """Register host memory, by address and length: an embedded store and RDMA pin its pages, a
        store process on this host maps those parts that it can.

        Memory that cannot be registered is logged; reads into it work all the same.
        """
        if self.attach is not None and self.attach.startswith("unix:"):
            share(store, spans)
            return []
        held = []
        for address, length in spans if self.register_memory else ():
            try:
                held.append(store.register((address, length)))
            except PagelithError as error:
                logger.warning("pagelith: %d bytes of host memory are not registered, so reads into them cost more CPU: %s", length, error)
        return held


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses, as few ranges as possible."""
    found: list[tuple[int, int]] = []
    for address, length in sorted(spans):
        if found and address <= found[-1][0] + found[-1][1]:
            first = found[-1][0]
            found[-1] = (first, max(found[-1][1], address + length - first))
        else:
            found.append((address, length))
    return found


def _secret(path: str) -> bytes:
    """The content of a secret file, under the rules of `pagelith` itself: a regular file of this
    user or root that no other user can read. A pipe does not block."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        # Checked on the open file: the path may name another file by now.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"not a regular file path={path}")
        if status.st_uid not in (os.geteuid(), 0):
            raise OSError(f"another user owns it and can change it (chown it) path={path} owner={status.st_uid} user={os.geteuid()}")
        if status.st_mode & 0o077:
            raise OSError(f"other users can read it (chmod 600) path={path} mode={stat.S_IMODE(status.st_mode):o}")
        secret = file.read(_SECRET_BYTES_MAX + 1)
        if len(secret) > _SECRET_BYTES_MAX:
            raise OSError(f"it is too long for a secret path={path} bytes_max={_SECRET_BYTES_MAX}")
        return secret


def _text(about: Mapping[str, Any], value: Any) -> Any:
    """A key's value, with a path as text."""
    return about["prefix"] + os.fsdecode(value) if "prefix" in about and isinstance(value, os.PathLike) else value


def _is(about: Mapping[str, Any], value: Any) -> bool:
    if about["kind"] is int:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= about["most"]
    return isinstance(value, about["kind"])
