#!/bin/sh
# test_install.sh BUILD - what a user of the installed library does: CMake's find_package and pkg-config, shared and
# static, from a prefix that was not the one configured, and moved once more.
set -eu
build=${1:?usage: test_install.sh BUILD}
cmake=${CMAKE:-cmake}
cc=${CC:-cc}
version=$(sed -n 's/^#define TN_VERSION_[A-Z]* \([0-9]*\)$/\1/p' "$(dirname "$0")/../include/truenorm.h" | paste -sd.)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
libdir=$(dirname "$(find "$prefix" -name libtruenorm.a)")

mkdir "$work/user"
cat >"$work/user/user.c" <<'END'
#include <stdio.h>
#include <string.h>
#include <truenorm.h>
int main(void)
{
    const double x[2] = {3, -3};
    double y[2];
    if (tn_rmsnorm(TN_F64, 1, 2, x, NULL, 0, y) != TN_OK || y[0] != 1 || y[1] != -1)
        return 1;
    puts(tn_version());
    return 0;
}
END
cat >"$work/user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(truenorm ${WANTED} REQUIRED)
add_executable(user_shared user.c)
target_link_libraries(user_shared PRIVATE truenorm::truenorm)
add_executable(user_static user.c)
target_link_libraries(user_static PRIVATE truenorm::truenorm_static)
END

# try WHAT COMMAND...: the command must print the version.
try()
{
    what=$1
    shift
    got=$("$@") || { echo "$what: exit $?" >&2; exit 1; }
    [ "$got" = "$version" ] || { echo "$what: version $got, not $version" >&2; exit 1; }
    echo "$what: $got"
}

"$cmake" -S "$work/user" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DWANTED="$version" >"$work/log" 2>&1 && "$cmake" --build "$work/cmake" >>"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
try "find_package, shared" "$work/cmake/user_shared"
try "find_package, static" "$work/cmake/user_static"
if "$cmake" -S "$work/user" -B "$work/cmake99" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DWANTED=99 >"$work/log" 2>&1; then
    echo "find_package(truenorm 99) was satisfied" >&2
    exit 1
fi

PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
if command -v pkg-config >/dev/null; then
    try "pkg-config, version" pkg-config --modversion truenorm
    "$cc" $(pkg-config --cflags truenorm) "$work/user/user.c" -o "$work/pc_shared" $(pkg-config --libs truenorm)
    try "pkg-config, shared" env LD_LIBRARY_PATH="$libdir" "$work/pc_shared"
    "$cc" -static $(pkg-config --cflags truenorm) "$work/user/user.c" -o "$work/pc_static" $(pkg-config --static --libs truenorm)
    try "pkg-config, static" "$work/pc_static"
else
    echo "pkg-config: not here, not tried"
fi

# The program runs from there too, with the library beside it.
if [ -x "$prefix/bin/truenorm" ]; then
    env LD_LIBRARY_PATH="$libdir" "$prefix/bin/truenorm" info >"$work/info"
    grep -q "$version" "$work/info" || { echo "truenorm info does not say $version" >&2; exit 1; }
    echo "program: truenorm info"
fi
