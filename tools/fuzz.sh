#!/usr/bin/env bash
# Builds every target in tests/fuzz with clang and runs each for FUZZ_SECONDS (600). Arguments name targets; without any, all
# run. Seeds are read from tests/fuzz/corpus/NAME; what a run finds goes to BUILD-fuzz/corpus/NAME, failures beside it.
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600} build=${BUILD:-build}-fuzz
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DWEFT_FUZZ=ON -DWEFT_TESTS=OFF >/dev/null
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for file in tests/fuzz/fuzz_*.c; do names+=("$(basename "$file" .c | sed 's/^fuzz_//')"); done
fi
for name in "${names[@]}"; do
    cmake --build "$build" -j "${JOBS:-2}" --target "fuzz_$name" >/dev/null
    found=$build/corpus/$name
    mkdir -p "$found" "tests/fuzz/corpus/$name"
    dictionary=() limit=(-max_len=65536)
    if [ -f "tests/fuzz/corpus/$name.dict" ]; then dictionary=("-dict=tests/fuzz/corpus/$name.dict"); fi
    echo "fuzz_$name: $seconds s"
    "$build/fuzz_$name" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 "${limit[@]}" "${dictionary[@]}" \
        -artifact_prefix="$build/$name-" "$found" "tests/fuzz/corpus/$name" >"$build/$name.log" 2>&1 ||
        { tail -40 "$build/$name.log"; echo "fuzz_$name: failed, see $build/$name.log"; exit 1; }
    grep -E "^stat::(number_of_executed_units|new_units_added)|^Done" "$build/$name.log"
done
