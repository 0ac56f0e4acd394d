"""The objects that one call of the controller puts, page by page."""

from collections.abc import Sequence

import pagelith

from .pools import Pieces


class Put:
    """The arguments of one call of `Store.put_pages`, page by page."""

    def __init__(self) -> None:
        self.keys: list[pagelith.Key] = []
        self.sources: list[Pieces] = []
        self.pages: list[int] = []

    def add(self, page: int, keys: Sequence[pagelith.Key], sources: Sequence[Pieces]) -> None:
        if not self.pages or self.pages[-1] != page:
            self.pages.append(page)
        self.keys += keys
        self.sources += sources


def first_of(keys: Sequence[str]) -> list[int]:
    """For each key, the index of its first occurrence: a repeated key is put once, and has one
    result."""
    at: dict[str, int] = {}
    return [at.setdefault(key, n) for n, key in enumerate(keys)]
