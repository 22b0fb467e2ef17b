#!/bin/sh
# python.sh - build the Python package, check its types, run python/tests. Arguments go to pytest.
#
#   scripts/python.sh [-k rms ...]
#
# Everything lies under build/: a virtual environment (installed anew when python/requirements-test.txt changes) with the
# package in it (when its sources change).
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$(test -x /usr/bin/python3 && echo /usr/bin/python3 || echo python3)}
venv=build/pyvenv
wanted=python/requirements-test.txt

if grep -q '^python=' scripts/setup.sh; then
    scripts/setup.sh python
fi
header=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
if [ ! -e "$header" ]; then
    echo "python.sh: $header is missing; on Debian: apt-get install python3-dev" >&2
    exit 1
fi

# Runs a command with its output in a file, which is shown only if it fails.
quietly()
{
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        exit 1
    }
}

if ! cmp -s $wanted $venv/requirements-test.txt; then
    echo "python.sh: installing $wanted into $venv"
    rm -rf $venv
    mkdir -p build
    quietly build/pyvenv.log "$PYTHON" -m venv $venv
    quietly build/pyvenv.log $venv/bin/pip install --disable-pip-version-check "$(grep '^torch==' $wanted)"
    quietly build/pyvenv.log $venv/bin/pip install --disable-pip-version-check -r $wanted
    cp $wanted $venv/requirements-test.txt
fi

sources="include src cmake CMakeLists.txt pyproject.toml python/CMakeLists.txt python/src python/truenorm"
changed=all
if [ -e $venv/installed ]; then
    changed=$(find $sources -name __pycache__ -prune -o -newer $venv/installed -print | head -n 1)
fi
if [ -n "$changed" ]; then
    echo "python.sh: building the package"
    touch $venv/installing
    quietly build/python.log env CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc 2>/dev/null || echo 2)}" \
        $venv/bin/pip install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
        --config-settings=build-dir=build/python \
        --config-settings=cmake.define.TN_PYTHON_WERROR="$(test -n "${CI:-}" && echo ON || echo OFF)" .
    mv $venv/installing $venv/installed
fi

$venv/bin/mypy --cache-dir build/mypy
export KERAS_BACKEND=torch HYPOTHESIS_STORAGE_DIRECTORY=build/hypothesis
exec $venv/bin/python -m pytest -q -o cache_dir=build/pytest_cache python/tests "$@"
