#!/usr/bin/env python3
"""Writes tiers.svg, the picture of the README, from the text below: python3 docs/tiers.py

A line is `box KIND X Y WIDTH HEIGHT TEXT` or `arrow X1 Y1 X2 Y2 TEXT`, in units of the picture. `|`
breaks a text. An arrow's text is above its middle."""

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 830, 330
PICTURE = """
box host 10 10 200 310 Embedded: one process
box process 25 45 170 90 engine or cache controller|links the library
box dram 40 165 140 45 DRAM tier|evicted by S3-FIFO
box ssd 40 255 140 45 SSD tier: a log|io_uring, O_DIRECT
arrow 110 135 110 165 put, get
arrow 110 210 110 255 write, read
box host 230 10 370 310 Store process: clients of a host, or of several
box process 260 45 95 60 engine|client
box process 367 45 95 60 engine|client
box process 475 45 95 60 router|events
box process 305 150 220 30 pagelith serve
box dram 260 200 145 45 DRAM tier
box ssd 425 200 145 45 SSD tier: a log
arrow 330 105 365 150 shared memory
arrow 415 105 415 150
arrow 500 105 465 150 TCP or RDMA
arrow 360 180 340 200
arrow 470 180 490 200
box note 245 255 340 50 every byte is verified where it arrives;|a page's objects are visible together or not at all
box host 620 10 200 310 Peers: a remote tier
box process 640 150 160 30 pagelith serve
box dram 640 200 72 45 DRAM
box ssd 728 200 72 45 SSD
arrow 525 165 640 165 pages by owner
box note 635 255 170 50 a page has one owner;|removals reach all peers
"""
FILL = {"host": "none", "process": "#dbe7f5", "dram": "#d9efd9", "ssd": "#f5e6cc", "note": "#ffffff"}


def lines_of_text(text, x, y, anchor="middle"):
    rows = text.split("|")
    top = y - 7 * (len(rows) - 1)
    return [
        f'<text x="{x}" y="{top + 14 * n}" text-anchor="{anchor}">{escape(row)}</text>'
        for n, row in enumerate(rows)
    ]


def box(kind, x, y, width, height, text):
    border = 'stroke="none"' if kind == "note" else 'stroke="#555"'
    dash = ' stroke-dasharray="5 4"' if kind == "host" else ""
    rect = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{FILL[kind]}" {border}{dash}/>'
    middle = y + 20 if kind == "host" else y + height / 2 + 4
    return [rect, *lines_of_text(text, x + width / 2, middle)]


def arrow(x1, y1, x2, y2, text=""):
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#333" marker-start="url(#tip)" marker-end="url(#tip)"/>'
    if not text:
        return [line]
    if y1 == y2:
        return [line, *lines_of_text(text, (x1 + x2) / 2, y1 - 6)]
    left = x2 < x1
    return [line, *lines_of_text(text, (x1 + x2) / 2 + (8 if left or x1 == x2 else -8), (y1 + y2) / 2 + 4,
                                 "start" if left or x1 == x2 else "end")]


def picture():
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>Tiers and modes of Pagelith</title>",
        '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto-start-reverse">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#333"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for line in PICTURE.strip().splitlines():
        what, rest = line.split(" ", 1)
        if what == "box":
            kind, x, y, width, height, text = rest.split(" ", 5)
            out += box(kind, int(x), int(y), int(width), int(height), text)
        else:
            x1, y1, x2, y2, *text = rest.split(" ", 4)
            out += arrow(int(x1), int(y1), int(x2), int(y2), *text)
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("tiers.svg").write_text(picture())
