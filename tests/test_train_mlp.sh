#!/bin/sh
# test_train_mlp.sh PROGRAM DIGITS ISA... - the loss falls, most images are recognised, the gain has moved; and the
# text is the same for each instruction set that is usable here and for 1 and 2 threads.
set -eu
program=$1
digits=$2
shift 2

fail()
{
    echo "test_train_mlp: $*" >&2
    exit 1
}

for kind in rms layer; do
    text=$(TN_ISA=$1 OMP_NUM_THREADS=1 "$program" $kind "$digits")
    for isa in "$@"; do
        for threads in 1 2; do
            other=$(TN_ISA=$isa OMP_NUM_THREADS=$threads "$program" $kind "$digits")
            [ "$text" = "$other" ] || fail "$kind: $isa with $threads threads prints something else"
        done
    done
    echo "$text" | awk '
        $1 == "epoch" { last = $4; if (!first) first = last }
        $1 == "accuracy" { accuracy = $2 }
        $1 == "gain:" { low = $3 + 0; high = $7 + 0 }
        END { exit !(last < first / 10 && accuracy > 0.9 && low < 0.99 && high > 1.01) }' || fail "$kind: not learnt:
$text"
done
echo "$text"
