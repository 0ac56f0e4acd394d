"""The program `pagelith`, as the wheel installs it and as `python -m pagelith` runs it.

    python -m pagelith doctor --dir /mnt/nvme/kv
    pagelith serve --listen unix:/run/pagelith/socket
"""

import signal
import sys

from ._native import _program


def main() -> int:
    """Run the program with the arguments of this process. Returns its exit status."""
    # The program handles signals itself. Python's handler of SIGINT would run when it has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _program(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
