"""The objects to be stored, by number; their bytes follow from their keys."""

import random
from dataclasses import dataclass

import pagelith

SPACES = [pagelith.Namespace("storm", revision=str(n)) for n in range(3)]
LENGTHS = (1, 700, 4096, 5000, 16384, 40_000, 65536, 150_000)
# Pages of single objects, of groups of two, and of groups with attached objects.
SINGLE, GROUPED, BASED = range(300), range(300, 400), range(400, 450)
_BYTES = memoryview(random.Random(0).randbytes(1 << 20))


@dataclass(frozen=True)
class Object:
    space: int
    page: int
    component: str = "kv"
    pool: str = "kv"

    @property
    def key(self) -> pagelith.Key:
        name = self.page.to_bytes(32, "little")
        return pagelith.Key(SPACES[self.space], name, pool=self.pool, component=self.component)

    @property
    def length(self) -> int:
        return LENGTHS[self._number() % len(LENGTHS)]

    @property
    def content(self) -> memoryview:
        """Its bytes. Two objects agree at no offset, except by chance."""
        at = self._number() * 7919 % (len(_BYTES) - max(LENGTHS))
        return _BYTES[at : at + self.length]

    def _number(self) -> int:
        # Each page's objects have different lengths.
        part = ("kv", "k", "v", "ssm").index(self.component)
        return (self.page * 4 + part) * 3 + self.space + self.page // 7


def single(rng: random.Random) -> Object:
    return Object(rng.randrange(len(SPACES)), rng.choice(SINGLE))


def groups(rng: random.Random, pages: int) -> list[list[Object]]:
    """Pages of one namespace whose two objects form a group."""
    space = rng.randrange(len(SPACES))
    return [[Object(space, page, "k"), Object(space, page, "v")] for page in rng.sample(GROUPED, pages)]


def based(rng: random.Random) -> tuple[Object, Object]:
    """A page's base object, and the object attached to it."""
    space, page = rng.randrange(len(SPACES)), rng.choice(BASED)
    return Object(space, page), Object(space, page, "ssm", "mamba")


def anything(rng: random.Random) -> Object:
    kind = rng.random()
    if kind < 0.7:
        return single(rng)
    return rng.choice(groups(rng, 1)[0]) if kind < 0.85 else rng.choice(based(rng))
