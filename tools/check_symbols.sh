#!/bin/sh
# check_symbols.sh BUILD - the shared library exports tn_ names only, and each that the header declares; each
# kernels_<isa> object exports one symbol, its table.
set -eu
build=${1:?usage: check_symbols.sh BUILD}
header=$(dirname "$0")/../include/truenorm.h
failed=0

exported=$(nm -D --defined-only "$build/libtruenorm.so" | awk '{ print $NF }')
for symbol in $exported; do
    case $symbol in
    tn_*) ;;
    *) echo "libtruenorm.so exports $symbol" >&2; failed=1 ;;
    esac
done
declared=$(sed -n 's/^TN_API .*[ *]\(tn_[a-z0-9_]*\)(.*/\1/p' "$header")
[ "$(echo "$declared" | sort)" = "$(echo "$exported" | sort)" ] || {
    echo "not both declared in truenorm.h and exported:" >&2
    printf '%s\n' $declared $exported | sort | uniq -u | sed 's/^/    /' >&2
    failed=1
}

objects=$(find "$build/CMakeFiles/truenorm_objects.dir" -name 'kernels_*.o')
[ -n "$objects" ] || { echo "no kernels_*.o under $build" >&2; exit 1; }
tables=0
for object in $objects; do
    isa=$(basename "$object" | sed 's/^kernels_//; s/\..*//')
    symbols=$(nm --defined-only --extern-only "$object" | awk '{ print $NF }')
    # Compiled for another architecture, an object is empty.
    [ -n "$symbols" ] || continue
    tables=$((tables + 1))
    [ "$symbols" = "tn_kernels_$isa" ] || {
        echo "kernels_$isa exports, instead of tn_kernels_$isa:" $symbols >&2
        failed=1
    }
done
[ $failed = 0 ] && echo "symbols: $(echo "$exported" | wc -l) exported, $tables kernel tables"
exit $failed
