#!/usr/bin/env bash
# Writes the configurations of this directory again, with `veilgrad init`. The test parts of the tables are public, so that
# bounds, categories and classes are proposed from them; labels, records and epsilon are declared.
# usage: examples/real/init.sh      after run.sh has fetched the tables
set -euo pipefail
cd "$(dirname "$0")"
veilgrad=${VEILGRAD_COMMAND:-../../target/release/veilgrad}

write() {
    local name=$1
    shift
    "$veilgrad" init "data/$name-train.csv" -o "$name.toml" --force --dataset "real-$name" --test "data/$name-test.csv" \
        --public-sample "data/$name-test.csv" --epsilon 3 "$@" </dev/null
}

write adult --label income --records 32561
write credit --label default-payment-next-month --records 24000
write hr --label status --records 7847
write fair --label affairs --records 5092
write cancer --label diagnosis --records 455
write apartments --label m2_price --records 9000
write crime --label ViolentCrimesPerPop --records 1594
