"""What the connector's two sides tell each other: the scheduler's what to move, the workers' what came of it."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class Named(KVConnectorHandshakeMetadata):
    """Under which names a worker keeps its slice of a block: arguments of a namespace, the shard, and how its objects are called."""

    namespace: dict[str, Any]
    shard: str
    component: str


@dataclass
class Load:
    """Pages of a request to be read, one behind the other: the first one's place in the request, their names, and by group where to."""

    request: str
    first: int
    pages: list[bytes]
    tables: list[list[int]]


@dataclass
class Step:
    """What a request does in a step, and which of its pages are whole behind it."""

    request: str
    # Its tables are these blocks, or grew by them.
    begins: bool
    blocks: list[list[int]]
    # Tokens that the step finds computed, and those that it computes.
    computed: int
    scheduled: int
    # Pages to be stored: the first one's place in the request, their names, and by group where they are.
    first: int = 0
    pages: list[bytes] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class State:
    """A recurrent state that lies still at the end of a step: the page behind which it is, its pool, and its block in each of the groups."""

    page: bytes
    pool: int
    blocks: tuple[int, ...]


@dataclass
class Plan(KVConnectorMetadata):
    """One step's."""

    loads: list[Load] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    # To be stored too.
    states: list[State] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    # Blocks that were given to requests since the last one: whatever was in them is overwritten from here on.
    taken: list[int] = field(default_factory=list)
    # How often the cache was reset.
    resets: int = 0


# A pool, by its place among all, and the name of a page in it.
Paged = tuple[int, bytes]


@dataclass
class Report(KVConnectorWorkerMetadata):
    """Pages that could not be read, and those that are in the store now; and the last reset that no save is under way from before of."""

    missed: set[Paged] = field(default_factory=set)
    stored: set[Paged] = field(default_factory=set)
    resets: int = 0

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "Report":
        """What one rank could not read is missed; the look-up asks for all ranks' slices of what is stored."""
        assert isinstance(other, Report)
        return Report(self.missed | other.missed, self.stored | other.stored, max(self.resets, other.resets))
