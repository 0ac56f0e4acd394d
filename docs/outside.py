#!/usr/bin/env python3
"""Preprocessor of mdBook: the site has the pages of this folder only, so a link to another file of
the repository becomes its text."""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")


def without_outside_links(page, folder):
    def text_or_link(match):
        path = posixpath.normpath(posixpath.join(folder, match.group(2)))
        return match.group(1) if path.startswith("..") else match.group(0)

    return LINK.sub(text_or_link, page)


def walk(node):
    if isinstance(node, list):
        for item in node:
            walk(item)
    elif isinstance(node, dict):
        if isinstance(node.get("content"), str) and node.get("source_path"):
            node["content"] = without_outside_links(node["content"], posixpath.dirname(node["source_path"]))
        for item in node.values():
            walk(item)


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    walk(book)
    json.dump(book, sys.stdout)
