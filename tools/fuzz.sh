#!/bin/bash
# Runs every fuzz target of the module, one after the other, for the given time each.
set -euo pipefail
cd "$(dirname "$0")/.."
found=0
while IFS=: read -r file func; do
	found=1
	echo "fuzz: $func in $(dirname "$file")"
	go test -run '^$' -fuzz "^$func\$" -fuzztime "$1" "./$(dirname "$file")"
done < <(git grep -o 'func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's/func //')
[ "$found" = 1 ] || { echo 'fuzz: no targets' >&2; exit 1; }
