#!/usr/bin/env bash
# Installs what the build needs and is missing; with `cross`, also what the Arm kernels' test wants. Debian 12 package names.
set -eu
need=()
want() { command -v "$1" >/dev/null 2>&1 || need+=("$2"); }
want cc build-essential
want cmake cmake
want pkg-config pkg-config
want python3 python3
for pair in jansson:libjansson-dev libpcre2-8:libpcre2-dev libutf8proc:libutf8proc-dev libedit:libedit-dev cmocka:libcmocka-dev; do
  pkg-config --exists "${pair%%:*}" 2>/dev/null || need+=("${pair#*:}")
done
if [ "${1:-}" = cross ] && [ "$(uname -m)" = x86_64 ]; then
  want aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
  want qemu-aarch64 qemu-user
  [ -e /usr/aarch64-linux-gnu/include/stdlib.h ] || need+=(libc6-dev-arm64-cross)
fi
[ ${#need[@]} -eq 0 ] && exit 0
echo "weft: installing ${need[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
  echo "weft: this is not a Debian system; install these by hand: ${need[*]}" >&2
  exit 1
fi
run=""
[ "$(id -u)" -eq 0 ] || run="sudo"
export DEBIAN_FRONTEND=noninteractive
$run apt-get update -qq
$run apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
