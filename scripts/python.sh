#!/bin/sh
# python.sh - build the Python package, check its types, run python/tests. Arguments go to pytest.
#
#   scripts/python.sh [-k rms ...]
#
# Everything lies under build/: a virtual environment (installed anew when python/requirements-test.txt changes) with the
# package in it (when its sources change).
set -eu
cd "$(dirname "$0")/.."
. scripts/venv.sh
venv=build/pyvenv

if grep -q '^python=' scripts/setup.sh; then
    scripts/setup.sh python
fi
header=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
if [ ! -e "$header" ]; then
    echo "python.sh: $header is missing; on Debian: apt-get install python3-dev" >&2
    exit 1
fi

make_venv $venv python/requirements-test.txt build/pyvenv.log
install_package $venv build/python build/python.log \
    --config-settings=cmake.define.TN_PYTHON_WERROR="$(test -n "${CI:-}" && echo ON || echo OFF)"

# The test against Transformers wants the program of examples/llama; it is left out where its libraries are missing.
if pkg-config --exists openblas libcjson 2>/dev/null; then
    mkdir -p build
    quietly build/llama.log cmake -S . -B build -G Ninja -DTN_BUILD_TESTS=OFF
    quietly build/llama.log cmake --build build --target llama
    export TRUENORM_LLAMA=build/examples/llama/llama
fi

$venv/bin/mypy --cache-dir build/mypy
$venv/bin/mypy --cache-dir build/mypy --config-file bench/mypy.ini
export KERAS_BACKEND=torch HYPOTHESIS_STORAGE_DIRECTORY=build/hypothesis
exec $venv/bin/python -m pytest -q -o cache_dir=build/pytest_cache python/tests "$@"
