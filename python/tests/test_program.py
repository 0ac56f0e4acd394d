"""The program that the wheel installs."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pagelith

MODULE = [sys.executable, "-m", "pagelith"]
SCRIPT = [str(Path(sys.executable).parent / "pagelith")]


def run(command: list[str], *args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*command, *args], capture_output=True, text=True, check=False)


class Program(unittest.TestCase):
    def test_script_and_module_are_the_program(self) -> None:
        for command in (MODULE, SCRIPT):
            version = run(command, "--version")
            self.assertEqual((version.returncode, version.stdout), (0, f"pagelith {pagelith.__version__}\n"))
            self.assertIn("Usage: pagelith stats", run(command, "stats", "--help").stdout)

    def test_doctor_checks_a_directory_and_reports_problems_by_its_status(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            found = run(MODULE, "doctor", "--json", "--dir", directory)
        names = [check["name"] for check in json.loads(found.stdout)]
        self.assertIn("io_uring", names, found)
        missing = run(MODULE, "doctor", "--dir", "/proc/nowhere")
        self.assertEqual(missing.returncode, 1, missing)

    def test_wrong_flags_and_errors_have_status_2_and_no_traceback(self) -> None:
        for args in (["--no-such-flag"], ["stats", "tcp:127.0.0.1:1"], ["inspect", "/proc/nowhere"]):
            refused = run(MODULE, *args)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""), refused)
            self.assertNotIn("Traceback", refused.stderr)

    def test_served_store_is_attached_to_and_ends_by_ctrl_c(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with tempfile.TemporaryDirectory() as directory:
                address = f"unix:{directory}/socket"
                serve = [*SCRIPT, "serve", "--listen", address, "--dram", "8MiB"]
                with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
                    assert served.stdout is not None and served.stderr is not None
                    self.assertEqual(served.stdout.readline(), f"listening {address}\n")
                    with pagelith.Store.attach(address) as store:
                        key = pagelith.Key(pagelith.Namespace("m"), "page")
                        self.assertTrue(all(store.put([key], [b"bytes"])))
                    stats = run(SCRIPT, "stats", "--json", address)
                    self.assertEqual(json.loads(stats.stdout)["puts_stored"], 1, stats)
                    os.kill(served.pid, number)
                    log = served.stderr.read()
                self.assertEqual(served.returncode, 0, log)
                self.assertNotIn("Traceback", log)


if __name__ == "__main__":
    unittest.main()
