#!/bin/bash
# Runs every fuzz target of the module for the given time each, one after the other on all
# processors. What they find worth trying again stays: in Go's cache, from which the next run
# begins, and the smallest of it in out/fuzz. With "smoke" behind the time they begin with
# their seeds, one processor each, and nothing of it stays. Either way an input that fails
# lies in the package's testdata, and is a test from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
each=$1 smoke=${2:-}
work=$(mktemp -d)
trap 'trap "" INT TERM; wait; rm -rf "$work"' EXIT # of an interrupted run the targets end by themselves
export TMPDIR=$work/tmp CGO_ENABLED=0
mkdir "$TMPDIR"
: >"$work/passed"
if [ "$smoke" = smoke ]; then
	cache=$work/cache atonce=$(nproc) workers=1 bound=(timeout --foreground -k 10 300)
else
	cache=$(go env GOCACHE)/fuzz/$(go list -m) atonce=1 workers=$(nproc) bound=()
fi

# try DIR FUNC: one target, its output with its name before each line. An input that is new
# is made smaller in twenty tries: in Go's minute for it nothing else is tried.
try() {
	local dir=$1 func=$2 log=$work/at/$1/$2.log inputs=$1/testdata/fuzz/$2 before failing said status=0
	before=$(ls "$inputs" 2>/dev/null) || true
	(cd "$dir" && exec "${bound[@]}" "$work/at/$dir/test" -test.paniconexit0 -test.run '^$' -test.fuzz "^$func\$" \
		-test.fuzztime "$each" -test.fuzzcachedir "$cache/$dir" -test.parallel "$workers" -test.fuzzminimizetime 20x) 2>&1 |
		tee "$log" | sed -u "s|^|$dir $func: |" || status=$?
	failing=$(comm -13 <(echo "$before") <(ls "$inputs" 2>/dev/null))
	said=$(grep -v '^fuzz: ' "$log") || true
	if ! grep -q '^fuzz: elapsed: ' "$log"; then
		said+=$'\nit was not fuzzed'
	elif [ $status = 0 ]; then
		echo "$dir/$func" >>"$work/passed"
		return
	elif [ -z "$failing" ] && ended_by_time "$func" <<<"$said"; then
		echo "fuzz: $dir $func: its time ended it (golang/go#75804): no finding"
		echo "$dir/$func" >>"$work/passed"
		return
	elif [ $status = 124 ]; then
		said+=$'\nit did not end'
	fi
	{
		tail -n 40 <<<"$said"
		for input in $failing; do
			echo "$inputs/$input:"
			head -c 4096 "$inputs/$input"
		done
	} | cut -c -1000 | sed "s|^|fuzz: $dir $func: |"
}

# ended_by_time FUNC: the output is that of a target whose end Go took for a failure: until
# 1.27 the deadline of -fuzztime, where it is seen before the workers are told, is reported
# like the error of an input, alone and without one.
ended_by_time() {
	[ "$(sed -nE '/^--- FAIL/,$p' | sed -E '1s/ \([0-9.]+s\)$//')" = "--- FAIL: $1"$'\n    context deadline exceeded\nFAIL' ]
}

# keep DIR FUNC: the small ones of the inputs that were found since the target began.
keep() {
	[ -d "$cache/$1/$2" ] || return 0
	mkdir -p "out/fuzz/$1/$2"
	find "$cache/$1/$2" -type f -size -2 -newer "$work/at/$1/$2.begun" -exec cp -t "out/fuzz/$1/$2" {} +
}

mapfile -t targets < <(git grep -o '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's/func //')
[ ${#targets[@]} != 0 ] || { echo 'fuzz: no targets' >&2; exit 1; }
for target in "${targets[@]}"; do
	dir=$(dirname "${target%:*}") func=${target#*:} at=$work/at/$dir
	echo "$dir/$func" >>"$work/all"
	if [ ! -e "$at/built" ]; then
		mkdir -p "$at" && touch "$at/built"
		go test -c -fuzz=. -ldflags '-s -w' -o "$at/test" "./$dir" || true # try says so
	fi
	while [ "$(jobs -pr | wc -l)" -ge "$atonce" ]; do wait -n || true; done
	{
		touch "$at/$func.begun"
		try "$dir" "$func"
		[ "$smoke" = smoke ] || keep "$dir" "$func"
	} &
done
wait
failed=$(comm -23 <(sort "$work/all") <(sort "$work/passed"))
[ -z "$failed" ] || { echo "fuzz: FAILED:" $failed >&2; exit 1; }
echo "fuzz: ${#targets[@]} targets, no finding"
