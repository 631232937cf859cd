#!/bin/sh
# The Arm kernels, cross-compiled, pass test_linear under emulation. Says so and passes where there is no cross compiler.
set -eu
cc=aarch64-linux-gnu-gcc qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
command -v $cc >/dev/null && [ -n "$qemu" ] || { echo "skipped: needs gcc-aarch64-linux-gnu and qemu-user"; exit 0; }
root=$(dirname "$0")/.. out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
sources=$(ls "$root"/src/base/*.c "$root"/src/backend/*.c "$root"/src/cpu/*.c "$root"/src/quant/*.c "$root"/src/checkpoint/dtype.c | grep -v -e _avx -e _amx -e json.c -e quant/open)
$cc -std=c11 -O2 -Wall -Wextra -Wshadow -Wvla -Werror -ffp-contract=off -march=armv8.2-a+dotprod -static \
    -I"$root"/src -I"$root"/include -I"$root"/tests/cross -I"$root"/tests -o "$out"/test_linear "$root"/tests/test_linear.c $sources -lm -lpthread
"$qemu" "$out"/test_linear neon
