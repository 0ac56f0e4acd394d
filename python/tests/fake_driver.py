"""Tests over a fake of both drivers, whose library `check.sh` passes in FAKE_DEVICE. The loader looks
for a library when a process starts, so the tests of a file run in another one.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile


def run_file(case, file, *options):
    """Run a file of tests as a program, over the fake drivers."""
    case.assertIn("FAKE_DEVICE", os.environ, "the library of the fake driver, which check.sh builds")
    with tempfile.TemporaryDirectory() as home:
        for name in ["libcuda.so.1", "libascendcl.so"]:
            shutil.copy(os.environ["FAKE_DEVICE"], os.path.join(home, name))
        environment = {**os.environ, "LD_LIBRARY_PATH": home, "FAKE_HOME": home}
        child = subprocess.run([sys.executable, *(options or ("-W", "error")), file], env=environment, capture_output=True, text=True)
    print(child.stdout + child.stderr, file=sys.stderr)
    case.assertEqual(child.returncode, 0)
    case.assertIn("OK", child.stderr)
    case.assertNotIn("skipped", child.stderr)


def loaded(name):
    """One of the fake drivers, with the functions that stand for the engine."""
    fake = ctypes.CDLL(os.path.join(os.environ["FAKE_HOME"], name))
    fake.fake_device_allocate.restype = fake.fake_device_count.restype = ctypes.c_uint64
    fake.fake_device_stream.restype = ctypes.c_size_t
    fake.fake_device_allocate.argtypes = [ctypes.c_uint32, ctypes.c_size_t]
    fake.fake_device_free.argtypes = [ctypes.c_uint64]
    fake.fake_device_peek.argtypes = fake.fake_device_poke.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    fake.fake_device_fill.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint8, ctypes.c_size_t]
    return fake


class Memory:
    """Memory of a device, of the fake driver `driver`."""

    def __init__(self, content):
        self.length = len(content)
        self.address = self.driver.fake_device_allocate(0, self.length)
        self.write(content)

    def write(self, content):
        self.driver.fake_device_poke(self.address, bytes(content), len(content))

    def read(self):
        into = ctypes.create_string_buffer(self.length)
        self.driver.fake_device_peek(self.address, into, self.length)
        return into.raw

    def free(self):
        self.driver.fake_device_free(self.address)
