#!/bin/sh
# claims.sh BUILD OUT [--quick] - train the models of examples/llama/claims and write OUT/claims.md and OUT/img.
#
# Everything else lies under BUILD/claims: a virtual environment, the text, the runs. Finished runs are kept, so that
# an interrupted call goes on where it was.
set -eu
build=$1
out=$2
shift 2
PYTHON=${PYTHON:-$(test -x /usr/bin/python3 && echo /usr/bin/python3 || echo python3)}
source=examples/llama/claims
work=$build/claims
venv=$work/venv
mkdir -p "$work"
if [ ! -x "$build/examples/llama/llama" ]; then
    echo "claims.sh: $build/examples/llama/llama is not built: OpenBLAS or cJSON is missing" >&2
    exit 1
fi

wanted=$(cat $source/requirements.txt $source/corpus-requirements.txt)
if [ "$wanted" != "$(cat "$venv/wanted" 2>/dev/null)" ]; then
    echo "claims.sh: installing $source/requirements.txt into $venv"
    rm -rf "$venv"
    {
        "$PYTHON" -m venv "$venv" &&
            "$venv/bin/pip" install --disable-pip-version-check -r $source/requirements.txt &&
            "$venv/bin/pip" install --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
                -r $source/corpus-requirements.txt
    } >"$work/venv.log" 2>&1 || {
        tail -n 20 "$work/venv.log" >&2
        exit 1
    }
    echo "$wanted" >"$venv/wanted"
fi
exec "$venv/bin/python" -B $source "$build/examples/llama/llama" --work "$work" --out "$out" "$@"
