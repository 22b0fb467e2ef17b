#!/bin/sh
# setup.sh - install the Debian packages that a step needs, if any is missing.
#
#   scripts/setup.sh run|test|clang|lint|coverage|python|claims ...
#
# Needs root only where something is missing. Other systems: install what the lists below name by your own means.
set -eu

run="gcc libc6-dev cmake ninja-build"
# examples/llama
llama="pkg-config libopenblas-dev libcjson-dev"
test="$run $llama g++ libmpfr-dev libcmocka-dev python3 python3-venv valgrind"
# NEON is tested under an emulator, except where the machine has it.
if [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ]; then
    test="$test gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
fi
clang="$run clang libclang-rt-dev"
lint="$run clang-format cppcheck python3 python3-venv"
coverage="$test gcovr"
python="$run $llama g++ python3 python3-venv python3-dev"
claims="$run $llama python3 python3-venv"

wanted=
for group in "$@"; do
    case $group in
    run) wanted="$wanted $run" ;;
    test) wanted="$wanted $test" ;;
    clang) wanted="$wanted $clang" ;;
    lint) wanted="$wanted $lint" ;;
    coverage) wanted="$wanted $coverage" ;;
    python) wanted="$wanted $python" ;;
    claims) wanted="$wanted $claims" ;;
    *) echo "setup.sh: no group '$group' (run, test, clang, lint, coverage, python, claims)" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "setup.sh: not a Debian system, so nothing is installed; needed:$wanted" >&2
    exit 0
fi
missing=
for package in $wanted; do
    case " $missing " in *" $package "*) continue ;; esac
    # A virtual package counts if something installed provides it.
    dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Provides}\n' 2>/dev/null |
        awk -v p="$package" '/^ii/ { gsub(/,|\([^)]*\)/, " "); for (i = 2; i <= NF; i++) if ($i == p) found = 1 }
                             END { exit !found }' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "setup.sh: packages are missing; as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "setup.sh: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# One unreachable list of several is no failure; the installation says whether what is needed was there.
apt-get update -qq >"$log" 2>&1 || tail -n 5 "$log" >&2
if ! apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup.sh: apt-get could not install:$missing" >&2
    exit 1
fi
