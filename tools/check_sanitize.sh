#!/usr/bin/env bash
# The unit tests of a sanitizer build; those named *_long are left to `make check`.
set -u
ctest --test-dir "${1:-build-sanitize}" --output-on-failure -j "$(nproc)" -E '_long|\.(py|sh)$'
