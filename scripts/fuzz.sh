#!/bin/sh
# fuzz.sh BUILD SECONDS|merge - libFuzzer on the .npy reader and on the forward and backward argument checks.
#
# Starts from tests/corpus; what it finds stays under BUILD, crashes under BUILD/crashes. `merge` adds the inputs that
# reach something new to tests/corpus, at their smallest.
set -eu
build=$1
what=$2
mkdir -p "$build/crashes"

sanitizers=address,undefined
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1 -g" \
    -DTN_SANITIZE=fuzzer-no-link,$sanitizers -DTN_BUILD_CLI=OFF -DTN_BUILD_EXAMPLES=OFF -DTN_BUILD_TESTS=OFF \
    >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
echo "building in $build"
cmake --build "$build" --target truenorm_static -- --quiet
flags="-g -O1 -std=c11 -D_GNU_SOURCE -Iinclude -Icli -fno-omit-frame-pointer -fsanitize=fuzzer,$sanitizers
    -fno-sanitize-recover=all"
clang $flags tests/fuzz_npy.c cli/npy.c -lm -o "$build/fuzz_npy"
clang $flags tests/fuzz_desc.c "$build/libtruenorm.a" -lm -o "$build/fuzz_desc"
clang $flags -Itests tests/fuzz_grad.c tests/grad_operands.c tests/grad_case.c tests/support.c tests/buffer.c tests/case.c \
    tests/case_random.c "$build/libtruenorm.a" -lm -o "$build/fuzz_grad"

for target in npy desc grad; do
    mkdir -p "$build/$target"
    if [ "$what" = merge ]; then
        "$build/fuzz_$target" -merge=1 "tests/corpus/$target" "$build/$target" 2>"$build/$target.log"
        echo "tests/corpus/$target: $(ls "tests/corpus/$target" | wc -l) inputs"
        continue
    fi
    if ! "$build/fuzz_$target" -max_total_time="$what" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/crashes/$target-" "$build/$target" "tests/corpus/$target" 2>"$build/$target.log"; then
        grep -v -E '^#[0-9]|NEW_FUNC|^INFO|^stat' "$build/$target.log" | tail -n 40
        echo "fuzz.sh: $target failed; the input is in $build/crashes, the log is $build/$target.log" >&2
        exit 1
    fi
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: */runs /p' "$build/$target.log" | tail -n 1)," \
        "$(grep -o 'cov: [0-9]*' "$build/$target.log" | tail -n 1), corpus $(ls "$build/$target" | wc -l)"
done
