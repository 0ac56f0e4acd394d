"""Messages between the connector's two sides: the scheduler's plan for a step, and the workers'
reports."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class Named(KVConnectorHandshakeMetadata):
    """The names of a worker's objects: arguments of its namespace, its shard, and the pattern of
    its components."""

    namespace: dict[str, Any]
    shard: str
    component: str


@dataclass
class Load:
    """Consecutive pages of a request to be read: the index of the first, their names, and by group
    their destination blocks."""

    request: str
    first: int
    pages: list[bytes]
    tables: list[list[int]]


@dataclass
class Step:
    """What a request computes in a step, and which of its pages are complete after it."""

    request: str
    # Whether its tables start with `blocks`, or are extended by them.
    begins: bool
    blocks: list[list[int]]
    # Tokens that were computed before the step, and those that the step computes.
    computed: int
    scheduled: int
    # Pages that the prompt fills; further ones contain an answer.
    prompt: int = 0
    # Pages to be stored: the index of the first, their names, and by group their blocks.
    first: int = 0
    pages: list[bytes] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class State:
    """A recurrent state that is stable at the end of a step: its request, index and name of the
    page that it follows, its pool, and its block in each group."""

    request: str
    index: int
    page: bytes
    pool: int
    blocks: tuple[int, ...]


@dataclass
class Plan(KVConnectorMetadata):
    """The plan for one step."""

    loads: list[Load] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    # States to be stored.
    states: list[State] = field(default_factory=list)
    # Requests that have finished, or were aborted or preempted, since the last plan.
    ended: list[str] = field(default_factory=list)
    # Blocks assigned to requests since the last plan: their content is overwritten from here on.
    taken: list[int] = field(default_factory=list)
    # Number of resets of the cache.
    resets: int = 0


# The index of a pool, and the name of a page in it.
Paged = tuple[int, bytes]


@dataclass
class Report(KVConnectorWorkerMetadata):
    """Pages that could not be read, pages that are stored now, and the last reset before which no
    save is in progress any more."""

    missed: set[Paged] = field(default_factory=set)
    stored: set[Paged] = field(default_factory=set)
    resets: int = 0

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "Report":
        """A page that one rank could not read counts as missed; for stored pages the lookup checks
        the slices of all ranks."""
        assert isinstance(other, Report)
        return Report(self.missed | other.missed, self.stored | other.stored, max(self.resets, other.resets))
