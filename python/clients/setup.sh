#!/usr/bin/env bash
# Makes an environment with SGLang's cache controllers, for machines without a GPU too: torch as the index has it, and of SGLang the
# package alone, whose other requirements are for running models. About 8 GB, from a package index.
#
#   python/clients/setup.sh DIR [PYTHON]     PYTHON is python3 unless it is given
set -euo pipefail
dir=${1:?a directory} python=${2:-python3}
"$python" -m venv "$dir"
pip() { "$dir/bin/pip" --disable-pip-version-check "$@"; }
pip install --quiet torch==2.14.1 torchvision numpy
pip install --quiet --no-deps sglang==0.5.23
# What its modules for host memory import.
pip install --quiet --requirement "$(dirname "$0")/requirements.txt"
