#!/bin/bash
# Runs every fuzz target of the module, one after the other, for the given time each. What
# they find worth trying again stays: in Go's cache, from which the next run begins, and the
# smallest of it in out/fuzz. An input that fails lies in the package's testdata, and is a
# test from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=$(go env GOCACHE)/fuzz/$(go list -m)
found=0 failed=
while IFS=: read -r file func; do
	found=$((found + 1)) dir=$(dirname "$file") begun=$SECONDS
	echo "fuzz: $func in $dir, $1"
	go test -run '^$' -fuzz "^$func\$" -fuzztime "$1" "./$dir" || failed+=" $dir/$func"
	[ -d "$corpus/$dir/$func" ] || continue
	mkdir -p "out/fuzz/$dir/$func"
	find "$corpus/$dir/$func" -type f -size -2 -newermt "@$(($(date +%s) - SECONDS + begun))" -exec cp -t "out/fuzz/$dir/$func" {} +
done < <(git grep -o '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's/func //')
[ "$found" != 0 ] || { echo 'fuzz: no targets' >&2; exit 1; }
[ -z "$failed" ] || { echo "fuzz: FAILED:$failed" >&2; exit 1; }
echo "fuzz: $found targets, no finding"
