#!/bin/sh
# bench.sh - the speed comparison: installs the peers, builds what is measured, runs bench/run.py (bench/README.md).
#
#   [QUICK=1] [CELLS=REGEX] [ROUNDS=9] scripts/bench.sh
#
# Everything lies under build/: benchvenv (peers, our package), bench (library, call loops, results, logs).
set -eu
cd "$(dirname "$0")/.."
. scripts/venv.sh
venv=build/benchvenv
out=build/bench

"$PYTHON" bench/grid.py >/dev/null # a wrong variable is better said before all that follows
scripts/setup.sh python
mkdir -p $out
make_venv $venv bench/requirements.txt $out/venv.log
install_package $venv $out/python $out/python.log

quietly $out/library.log cmake -S . -B $out/library -G Ninja \
    -DTN_BUILD_CLI=OFF -DTN_BUILD_EXAMPLES=OFF -DTN_BUILD_TESTS=OFF
quietly $out/library.log cmake --build $out/library --parallel "${JOBS:-$(nproc 2>/dev/null || echo 2)}" -- --quiet
quietly $out/calls.log "${CC:-cc}" -O3 -march=native -std=c11 -D_GNU_SOURCE -Wall -Wextra -fopenmp -fPIC -shared -Iinclude \
    bench/calls.c -o $out/libcalls.so -L$out/library -ltruenorm -Wl,-rpath,'$ORIGIN/library'

exec $venv/bin/python bench/run.py $out
