# venv.sh - for scripts that need our Python package in a virtual environment; sourced, from the top folder.
PYTHON=${PYTHON:-$(test -x /usr/bin/python3 && echo /usr/bin/python3 || echo python3)}

# quietly LOG COMMAND...: runs a command with its output in a file, which is shown only if it fails.
quietly()
{
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        exit 1
    }
}

# make_venv FOLDER REQUIREMENTS LOG: the environment, made anew when the requirements have changed. torch comes before
# the rest, by its own pin.
make_venv()
{
    cmp -s "$2" "$1/requirements.txt" && return
    echo "$(basename "$0"): installing $2 into $1"
    rm -rf "$1"
    mkdir -p "$(dirname "$3")"
    quietly "$3" "$PYTHON" -m venv "$1"
    quietly "$3" "$1/bin/pip" install --disable-pip-version-check "$(grep '^torch==' "$2")"
    quietly "$3" "$1/bin/pip" install --disable-pip-version-check -r "$2"
    cp "$2" "$1/requirements.txt"
}

# install_package VENV BUILD LOG [OPTION...]: builds and installs our package if a source is newer than the last time.
install_package()
{
    target=$1 build=$2 output=$3
    shift 3
    sources="include src cmake CMakeLists.txt pyproject.toml python/CMakeLists.txt python/src python/truenorm"
    changed=all
    if [ -e "$target/installed" ]; then
        changed=$(find $sources -name __pycache__ -prune -o -newer "$target/installed" -print | head -n 1)
    fi
    [ -n "$changed" ] || return 0
    echo "$(basename "$0"): building the package"
    touch "$target/installing"
    quietly "$output" env CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc 2>/dev/null || echo 2)}" \
        "$target/bin/pip" install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
        --config-settings=build-dir="$build" "$@" .
    mv "$target/installing" "$target/installed"
}
