"""Writes the docstrings of the installed module `pagelith._native` into its stub, where editors look
for them. Their one source is the comments in python/src.

    python python/tests/stub_docs.py            after a change of those comments, with the new wheel
    python python/tests/stub_docs.py --check    status 1 if the stub has other docstrings
"""

import ast
import inspect
import sys
from pathlib import Path

import pagelith._native as native

STUB = Path(__file__).parents[1] / "pagelith" / "_native.pyi"


def doc_of(owner: object, name: str) -> str:
    """The docstring of a class, method or property; empty if it has none of its own."""
    found = vars(owner).get(name)
    found = getattr(found, "__func__", found)
    return inspect.cleandoc(getattr(found, "__doc__", None) or "")


def docs_of(tree: ast.Module) -> list[tuple[ast.ClassDef | ast.FunctionDef, str]]:
    """The public classes of a stub and their public members, with their docstrings."""
    found: list[tuple[ast.ClassDef | ast.FunctionDef, str]] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        found.append((node, doc_of(native, node.name)))
        owner = getattr(native, node.name)
        members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
        found += [(member, doc_of(owner, member.name)) for member in members if not member.name.startswith("_")]
    return found


def quoted(doc: str, columns: int) -> list[str]:
    """The lines of a docstring."""
    indent = " " * columns
    escaped = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = [indent + line if line else "" for line in f'"""{escaped}'.split("\n")]
    if len(lines) == 1:
        return [lines[0] + '"""']
    return [*lines, indent + '"""']


def written(stub: str) -> str:
    """The stub with the docstrings of the module."""
    lines = stub.split("\n")
    # From the end, so that the numbers of earlier lines stay right.
    for node, doc in sorted(docs_of(ast.parse(stub)), key=lambda found: -found[0].lineno):
        body = node.body[0]
        is_doc = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant)
        is_doc = is_doc and isinstance(body.value.value, str)
        is_empty = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...
        new = quoted(doc, node.col_offset + 4) if doc else []
        assert body.end_lineno is not None
        if is_doc:
            # A docstring that ends is followed by the members, or by nothing.
            lines[body.lineno - 1 : body.end_lineno] = new or [" " * (node.col_offset + 4) + "..."]
        elif is_empty and new:
            at = body.lineno - 1
            lines[at : at + 1] = [lines[at][: body.col_offset].rstrip(), *new]
        elif new:
            # Before the first member, and its decorators.
            first = min([body.lineno, *(mark.lineno for mark in getattr(body, "decorator_list", []))])
            lines[first - 1 : first - 1] = new
    return "\n".join(lines)


def main() -> int:
    stub = STUB.read_text()
    new = written(stub)
    ast.parse(new)
    if sys.argv[1:] == ["--check"]:
        return int(new != stub)
    STUB.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
