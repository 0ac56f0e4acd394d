#!/usr/bin/env python3
"""Preprocessor of mdBook: adds the pages of other folders that readers begin with. A link to any
other file outside of this folder becomes its text."""

import json
import posixpath
import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:]+)\)")
HERE = Path(__file__).resolve().parent
# From this folder: the page of the site, its title, and the chapter after which it follows.
ADDED = {
    "../README.md": ("start.md", "Get started", "Where to look"),
    "../python/README.md": ("python.md", "Python", "Operating a store"),
    "../CONTRIBUTING.md": ("contributing.md", "Contributing", "Architecture"),
    "../CHANGELOG.md": ("changes.md", "Changes", "Roadmap"),
}


def with_links(page, folder, at):
    """The page with its links, which are relative to `folder`, relative to the folder `at`."""

    def link(match):
        path, mark, heading = match.group(3).partition("#")
        if not path:
            return match.group(0)
        path = posixpath.normpath(posixpath.join(folder, path)).removeprefix(f"../{HERE.name}/")
        path = ADDED[path][0] if path in ADDED else path
        if path.startswith(".."):
            return match.group(2)
        return f"{match.group(1)}[{match.group(2)}]({posixpath.relpath(path, at or '.')}{mark}{heading})"

    return LINK.sub(link, page)


def walk(items):
    """Change the links of all chapters."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            folder = posixpath.dirname(chapter["source_path"] or "")
            chapter["content"] = with_links(chapter["content"], folder, folder)
            walk(chapter["sub_items"])


def add(items):
    """Add the pages after their predecessors."""
    for source, (path, name, before) in ADDED.items():
        content = with_links((HERE / source).read_text(), posixpath.dirname(source), "")
        chapter = {"name": name, "content": content, "number": None, "sub_items": [], "path": path}
        chapter |= {"source_path": path, "parent_names": []}
        places = [n for n, item in enumerate(items) if isinstance(item, dict) and item.get("Chapter", {}).get("name") == before]
        items.insert(places[0] + 1, {"Chapter": chapter})


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    # Versions of mdBook name the list differently.
    items = book["items"] if "items" in book else book["sections"]
    walk(items)
    add(items)
    json.dump(book, sys.stdout)
