"""Docstrings, as `help()` and editors show them."""

import ast
import unittest
from typing import get_type_hints

import stub_docs

import pagelith


class Docs(unittest.TestCase):
    def test_every_public_class_and_member_has_a_docstring(self) -> None:
        found = stub_docs.docs_of(ast.parse(stub_docs.STUB.read_text()))
        self.assertGreater(len(found), 100)
        self.assertEqual([node.name for node, doc in found if not doc], [])

    def test_stub_has_the_docstrings_of_the_module(self) -> None:
        stub = stub_docs.STUB.read_text()
        self.assertEqual(stub_docs.written(stub), stub, "run python/tests/stub_docs.py with this wheel")

    def test_help_shows_arguments_errors_and_an_example(self) -> None:
        doc = pagelith.Store.__doc__ or ""
        for part in ["with pagelith.Store(", "`timeout`: longest duration in seconds", "InvalidError"]:
            self.assertIn(part, doc)

    def test_stats_have_the_fields_of_their_type(self) -> None:
        settings = {"dram": {"bytes": "1MiB"}, "namespaces": {"counted": 1}}
        with pagelith.Store(settings) as store:
            space = pagelith.Namespace("m")
            store.put([pagelith.Key(space, "page")], [b"bytes"])
            stats = store.stats()
        hints = get_type_hints(pagelith.Stats)
        self.assertEqual(set(stats), set(hints))
        row = get_type_hints(pagelith.NamespaceStats)
        for name, value in stats.items():
            if hints[name] in (int, str):
                self.assertIsInstance(value, hints[name], name)
            elif name == "namespaces":
                self.assertEqual({frozenset(of) for of in value.values()}, {frozenset(row)})
            elif name != "limits":
                self.assertTrue(all(isinstance(count, int) for count in value.values()), name)


if __name__ == "__main__":
    unittest.main()
