#!/bin/sh
# run.sh BUILD - the demonstration behind `make run`: the small net of the RMSNorm article, then real activations.
set -eu
build=$1
data=tests/data/minilm
truenorm=$build/cli/truenorm

echo
echo "\$ truenorm simplenet"
"$truenorm" simplenet

out=$build/minilm
mkdir -p "$out"
echo
grep -v '^#' $data/index.txt | while read -r name rows n eps; do
    echo "\$ truenorm norm --kind layer --eps $eps --weight $name.weight.npy --bias $name.bias.npy $name.x.npy -o $name.npy"
    "$truenorm" norm --kind layer --eps "$eps" --weight $data/"$name".weight.npy --bias $data/"$name".bias.npy \
        $data/"$name".x.npy -o "$out/$name.npy"
done
echo
"$build/examples/minilm" $data "$out"
