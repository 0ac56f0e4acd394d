"""The results of `gpu.py`: a row per kind of memory, for pages of one size and one kind of store;
and its tables."""

import collections
import contextlib
import statistics

COLUMNS = {
    "D2H": "GPU to pool",
    "put": "put",
    "durable": "put, on the drive",
    "DRAM": "get, DRAM",
    "SSD": "get, SSD",
    "registered": "get, SSD, registered",
    "H2D": "pool to GPU",
}


class Row:
    """The results for one kind of memory, with pages of one size and one kind of store."""

    def __init__(self, page_bytes, way, kind, host):
        self.page_bytes, self.way, self.kind, self.host, self.turns = page_bytes, way, kind, host, 0
        self.figures = collections.defaultdict(lambda: collections.defaultdict(list))
        self.cpu = collections.defaultdict(list)
        self.compared, self.wrong, self.missing, self.failed, self.told = 0, 0, 0, {}, collections.Counter()
        # The puts of each turn: keys, and the seed of the pages.
        self.put = {}

    def add(self, what, turn, nbytes, seconds):
        self.figures[what][turn].append(nbytes / 1e9 / seconds)

    @contextlib.contextmanager
    def attempt(self, what, device):
        """Limits a failure to this measurement."""
        try:
            yield
        except Exception as error:
            self.failed.setdefault(what, f"{type(error).__name__}: {error}")
            device.forget_error()

    def median(self, what):
        turns = [statistics.median(samples) for samples in self.figures.get(what, {}).values()]
        return statistics.median(turns) if turns else None

    def ratio(self, what, base, other=None):
        """The median of the rounds' ratios to `base`, by default for the same measurement."""
        theirs = base.figures.get(other or what, {})
        both = [(mine, theirs[turn]) for turn, mine in self.figures.get(what, {}).items() if turn in theirs]
        return statistics.median(statistics.median(mine) / statistics.median(its) for mine, its in both) if both else None

    def saved(self):
        figures = {what: {"median": self.median(what), "rounds": turns} for what, turns in self.figures.items()}
        names = ("page_bytes", "way", "kind", "turns", "compared", "wrong", "missing", "failed")
        pool = self.host.told() if self.host else None
        return {**{name: getattr(self, name) for name in names}, "pool": pool, "gb_s": figures, "cpu_s_gb": self.cpu, "told": self.told}


def cell(row, what, base):
    figure, ratio = row.median(what), row.ratio(what, base)
    if figure is None:
        return "-"
    return f"{figure:.2f}" if row is base or ratio is None else f"{figure:.2f} ({ratio:.2f})"


def tables(rows):
    """All results, as Markdown."""
    bases = {(row.page_bytes, row.way): row for row in reversed(rows)}
    lines = [f"| page | store | memory | {' | '.join(COLUMNS.values())} | rounds | wrong | missing |"]
    lines.append("| ---: | --- | --- |" + " ---: |" * (len(COLUMNS) + 3))
    for row in rows:
        cells = [cell(row, what, bases[row.page_bytes, row.way]) for what in COLUMNS]
        lines.append(f"| {row.page_bytes >> 10} KiB | {row.way} | {row.kind} | {' | '.join(cells)} | {row.turns} | {row.wrong} | {row.missing} |")
    lines += ["", "| page | memory | SSD to GPU, copies under reads | reads alone | ratio |", "| ---: | --- | ---: | ---: | ---: |"]
    for row in rows:
        if row.median("overlapped"):
            figures = (row.median("overlapped"), row.median("reads"), row.ratio("overlapped", row, "reads"))
            lines.append(f"| {row.page_bytes >> 10} KiB | {row.kind} | {' | '.join(f'{one:.2f}' for one in figures)} |")
    lines.append("")
    for row in rows:
        where = f"{row.page_bytes >> 10} KiB, {row.way}, {row.kind}"
        lines += [f"not done: {where}, {what}: {why}" for what, why in row.failed.items()]
        lines += [f"{where}, {said}: {count:,}" for said, count in row.told.items() if count and ("missed" in said or "staging" in said or "rings" in said)]
    return "\n".join(lines)
