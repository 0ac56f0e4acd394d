"""A store process for `gpu.py`, as a context manager."""

import contextlib
import os
import select
import subprocess
import tempfile

# Longest times until it listens, and until it has ended, in seconds.
LONG = 60


@contextlib.contextmanager
def serving(program, folder, *, ssd, dram, **dram_settings):
    """The address of a `pagelith serve` over the store in `folder`."""
    said = tempfile.TemporaryFile("w+")
    # The path of a socket must be short.
    with said, tempfile.TemporaryDirectory(prefix="pagelith-") as near:
        socket = os.path.join(near, "socket")
        command = [program, "serve", "--listen", f"unix:{socket}", "--dir", folder, "--ssd", str(ssd), "--dram", str(dram)]
        settings = {f"PAGELITH_DRAM__{name.upper()}": str(value).lower() for name, value in dram_settings.items()}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, **settings})
        try:
            ready, _, _ = select.select([child.stdout], [], [], LONG)
            line = child.stdout.readline() if ready else ""
            if not line.startswith("listening "):
                said.seek(0)
                raise RuntimeError(f"{program} does not listen: {line}{said.read()[-2000:]}")
            yield line.removeprefix("listening ").strip()
        finally:
            child.terminate()
            try:
                child.wait(LONG)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
