#!/bin/bash
# Reads what go test printed and says in a few lines each why its tests failed: what a test
# logged last (before its verdict with -v, behind it without), not the daemons' logs.
# With "verdicts" it passes every test's result too, as it comes.
set -uo pipefail
read=(awk)
awk -W version 2>&1 | grep -q ^mawk && read+=(-W interactive) # mawk fills its buffer first
"${read[@]}" -v all="${1:-}" '
	function verdict() { if (all) { print; fflush() } }
	/^ *[a-zA-Z0-9_]+\.go:[0-9]+: / && !/^ *harness\.go:/ {
		if (after > 0) { print "FAIL: " substr($0, 1, 400); after-- }
		else said[n++ % 12] = substr($0, 1, 400)
		next
	}
	/^--- FAIL|^panic:|^WARNING: DATA RACE/ {
		print (all ? "" : "FAIL: ") $0
		for (i = n > 12 ? n - 12 : 0; i < n; i++) print "FAIL: " said[i % 12]
		fflush(); n = 0; after = 12; next
	}
	/^=== RUN|^--- |^ok |^FAIL/ { if (!/^=== /) verdict(); if (!/^=== RUN.*\//) n = 0; after = 0 }'
