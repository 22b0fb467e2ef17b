#!/bin/sh
# tsan.sh [BUILD] - tests/test_grad_threads under the thread sanitizer: the library and the test's POSIX threads.
# OpenMP is left out: the sanitizer does not know that runtime.
set -eu
build=${1:-build/tsan}
cc=${CC:-gcc}
mkdir -p "$build"

cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1 -g" \
    -DTN_SANITIZE=thread -DTN_BUILD_CLI=OFF -DTN_BUILD_EXAMPLES=OFF -DTN_BUILD_TESTS=OFF \
    >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
echo "building in $build"
cmake --build "$build" --target truenorm_static -- --quiet
flags="-g -O1 -std=c11 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fsanitize=thread -Iinclude -Isrc -Itests"
tests="tests/test_grad_threads.c tests/grad_openmp.c tests/grad_check.c tests/grad_case.c tests/grad_operands.c tests/grad_oracle.c
    tests/grad_tape.c tests/number.c tests/support.c tests/buffer.c tests/case.c tests/case_random.c tests/executor.c"
"$cc" $flags $tests "$build/libtruenorm.a" -lcmocka -lmpfr -lm -lpthread -o "$build/test_grad_threads"
TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" "$build/test_grad_threads"
