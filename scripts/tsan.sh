#!/bin/sh
# tsan.sh [BUILD] - tests/test_grad_threads under the thread sanitizer: the library and the test's POSIX threads.
# OpenMP is left out: the sanitizer does not know that runtime.
set -eu
build=${1:-build/tsan}
cc=${CC:-gcc}
mkdir -p "$build"

flags="-g -O1 -std=c11 -D_GNU_SOURCE -ffp-contract=off -fno-math-errno -fsanitize=thread -Iinclude -Isrc -Itests"
tests="tests/test_grad_threads.c tests/grad_openmp.c tests/grad_check.c tests/grad_case.c tests/grad_operands.c tests/grad_oracle.c
    tests/grad_tape.c tests/number.c tests/support.c tests/buffer.c tests/case.c tests/case_random.c tests/executor.c"
"$cc" $flags $tests src/*/*.c -lcmocka -lmpfr -lm -lpthread -o "$build/test_grad_threads"
TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" "$build/test_grad_threads"
