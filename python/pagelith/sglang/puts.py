"""What one call of the controller puts, page after page."""

from collections.abc import Sequence

import pagelith

from .pools import Pieces


class Put:
    """Objects of one call of `Store.put_pages`, page after page."""

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
    """Of each key, where it is given first: one that is given twice is put once, and has one verdict."""
    at: dict[str, int] = {}
    return [at.setdefault(key, n) for n, key in enumerate(keys)]
