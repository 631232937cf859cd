#!/usr/bin/env bash
# The installed tree builds and runs the example: by pkg-config and by CMake, against the shared and the static library.
set -eu
root=$PWD
build=${BUILD_DIR:-build}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
if grep -q '^WEFT_SANITIZE:BOOL=ON' "$build/CMakeCache.txt"; then exit 0; fi
cmake --install "$build" --prefix "$temp/usr" >/dev/null
lib=$(dirname "$(find "$temp/usr" -name libweft.a)")
for file in bin/weft include/weft.h share/man/man1/weft.1; do test -s "$temp/usr/$file" || { echo "no $file"; exit 1; }; done
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib

want="I am a very small test model with the shape of a big one."
check() {
  said=$("$2" "$root/models/tiny" | head -1)
  [ "$said" = "$want" ] || { echo "$1: it said \"$said\""; exit 1; }
  echo "ok $1"
}
cc -std=c11 -Wall -Wextra -Werror "$root/examples/hello.c" $(pkg-config --cflags --libs weft) -o "$temp/shared"
check "pkg-config, shared" "$temp/shared"
cc -std=c11 "$root/examples/hello.c" $(pkg-config --cflags weft) "$lib/libweft.a" $(pkg-config --static --libs weft | sed 's/-lweft//') \
  -o "$temp/static"
check "pkg-config, static" "$temp/static"
"$temp/usr/bin/weft" --version

mkdir "$temp/project"
cp "$root/examples/hello.c" "$temp/project"
cat > "$temp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(hello C)
find_package(weft 0.1 REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello weft::weft)
add_executable(hello_static hello.c)
target_link_libraries(hello_static weft::weft_static)
END
cmake -S "$temp/project" -B "$temp/project/build" -DCMAKE_PREFIX_PATH="$temp/usr" >/dev/null
cmake --build "$temp/project/build" >/dev/null
check "CMake, shared" "$temp/project/build/hello"
check "CMake, static" "$temp/project/build/hello_static"

# weft.h says what it needs by itself, in C and in C++.
echo '#include <weft.h>' > "$temp/header.c"
cc -std=c11 -Wall -Wextra -Werror -pedantic $(pkg-config --cflags weft) -c "$temp/header.c" -o /dev/null
if command -v c++ >/dev/null; then c++ -x c++ -Wall -Wextra -Werror $(pkg-config --cflags weft) -c "$temp/header.c" -o /dev/null; fi
# The shared library shows weft.h's functions and nothing else.
nm -D --defined-only "$lib/libweft.so" | awk '$2 ~ /[TDBR]/ {print $3}' | grep -v '^weft_' | head | tee "$temp/others"
[ ! -s "$temp/others" ] || { echo "the shared library shows other names"; exit 1; }
echo "ok names"
