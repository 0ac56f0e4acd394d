"""What the wheel holds."""

import unittest
from pathlib import Path

import pagelith


class Package(unittest.TestCase):
    def test_native_module_has_no_debug_sections(self) -> None:
        path = pagelith._native.__file__
        assert path is not None
        # The names of an ELF file's sections are in one table.
        names = Path(path).read_bytes()
        self.assertIn(b"\0.rodata\0", names, "not an ELF file with section names")
        self.assertNotIn(b"\0.debug_info\0", names)


if __name__ == "__main__":
    unittest.main()
