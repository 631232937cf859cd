#!/usr/bin/env bash
# Every test of build folder $1, and the checks of the source itself. Closes with "N passed, N failed".
set -u
build=${1:-build}
log=$(mktemp)
python3 tools/check_layers.py; layers=$?
ctest --test-dir "$build" --output-on-failure -j "$(nproc)" 2>&1 | tee "$log"
passed=$(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log")
total=$(grep -cE '^ *[0-9]+/[0-9]+ Test ' "$log")
failed=$((total - passed))
if [ $layers -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
rm -f "$log"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 1 ]
