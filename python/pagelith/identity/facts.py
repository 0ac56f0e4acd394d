"""Facts about a model as canonical JSON, and their digest."""

import dataclasses
import enum
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

logger = logging.getLogger(__name__)

# Part of every fingerprint. A change of how fingerprints are computed needs a new text.
FORMAT = "pagelith-model-1"
# Fields that name the source of a configuration or its writer; they do not change the cache's
# bytes.
_ORIGIN_FIELDS = ("_name_or_path", "transformers_version")
# Nested deeper than any configuration; bounds the recursion.
_DEPTH_MAX = 24
# An engine's variable with one of these words in its name can change the bytes of a cache, also one
# in a future version.
_CACHE_VARIABLE = re.compile("LAYOUT|KVCACHE|KV_CACHE|QUANT|ROPE")

_announced: set[tuple[str, str, str]] = set()


class ModelError(ValueError):
    """Pages of this model cannot be kept apart: a fact is unknown and there is no `revision`, or
    the bytes depend on something that no name can express."""


@dataclass(frozen=True)
class Identity:
    """The facts about one model, and the names of those that could not be read."""

    facts: Mapping[str, Any]
    unknown: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        return digest([FORMAT, self.facts])

    @property
    def extra(self) -> tuple[str, str]:
        """The entry for a namespace's `extra`."""
        return "model", self.fingerprint


@dataclass
class Reader:
    """Collects facts. A fact whose source is missing is recorded as unknown and raises no error."""

    facts: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def read(self, name: str, source: Callable[[], Any]) -> Any:
        """Record the value as a fact and return it; None if it cannot be read."""
        try:
            value = source()
            self.facts[name] = plain(value)
        except Exception as error:
            logger.debug("pagelith: fact cannot be read name=%s error=%r", name, error)
            self.miss(name)
            return None
        return value

    def variable(self, name: str) -> None:
        """Record an environment variable, if it is set."""
        if name in os.environ:
            self.facts[name] = os.environ[name]

    def miss(self, name: str) -> None:
        self.facts[name] = "unknown"
        self.unknown.append(name)

    def identity(self) -> Identity:
        return Identity(self.facts, tuple(self.unknown))


def admit(identity: Identity, revision: str, where: str) -> None:
    """Raise ModelError if a fact is unknown and there is no `revision`. Otherwise log the facts,
    once."""
    if identity.unknown and not revision:
        raise ModelError(
            f"{where}: pagelith cannot identify {', '.join(identity.unknown)}, and would confuse the pages of two models:"
            " set 'revision' to a text of your own that you change whenever any of that changes, such as"
            ' "my-model weights-7 bf16 kv-fp8 max-len-32768"'
        )
    if (identity.fingerprint, revision, where) in _announced:
        return
    _announced.add((identity.fingerprint, revision, where))
    facts = " ".join(f"{name}={_short(value)}" for name, value in sorted(identity.facts.items()))
    logger.info("pagelith: identity of the model: fingerprint=%s revision=%r %s", identity.fingerprint, revision, facts)
    if identity.unknown:
        logger.warning(
            "pagelith: unknown facts of the model: %s; only revision=%r keeps its pages apart from others: change it when they change",
            ", ".join(identity.unknown), revision,
        )


def _short(value: Any) -> str:
    """A fact for a log line: its text, or if that is long a prefix of its digest, by which two
    servers can be compared."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else f"sha256:{digest(value)[:16]}"


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fields_of(value: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """All fields of a configuration but those in `without`, so that a field that is new in an
    engine is included."""
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
    else:
        names = list(getattr(value, "__struct_fields__", None) or vars(value))
    return {name: getattr(value, name) for name in names if name not in without and hasattr(value, name)}


def environment(prefix: str, named: Collection[str], without: Collection[str] = ()) -> dict[str, str]:
    """The environment variables that change the bytes of a cache: those in `named`, and those with
    `prefix` whose names match `_CACHE_VARIABLE`."""
    names = (name for name in os.environ if name in named or (name.startswith(prefix) and _CACHE_VARIABLE.search(name)))
    return {name: _content(name, os.environ[name]) for name in names if name not in without}


def _content(name: str, value: str) -> str:
    """A variable's value; if the variable names an existing configuration file, the digest of the
    file."""
    if not name.endswith("_CONFIG") or not os.path.exists(value):
        return value
    with open(value, "rb") as file:
        return f"sha256:{hashlib.sha256(file.read()).hexdigest()}"


def plain(value: Any, depth: int = 0) -> Any:
    """The value as plain JSON, equal in every process."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"a configuration is nested deeper than {_DEPTH_MAX}")
    inner = depth + 1
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(one, inner) for name, one in value.items() if name not in _ORIGIN_FIELDS}
    if isinstance(value, (list, tuple)):
        return [plain(one, inner) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(one, inner) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(getattr(value, "to_dict", None)):
        return plain(value.to_dict(), inner)
    if dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__"):
        return plain(fields_of(value), inner)
    text = str(value)
    if " at 0x" in text:
        # The default text contains the object's address, which differs in every process.
        return [type(value).__qualname__, plain(vars(value), inner)]
    return text
