#!/bin/bash
# Runs the integration tests of the given packages, two at a time (a VM without KVM keeps one
# processor busy). The whole output goes to out/integration.log; on
# the terminal: each test's result, and everything about those that failed. A skipped
# test that is not on the list fails the run: nothing of this ring may be missing silently.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p out
log=out/integration.log
# What may be left out, where the host has no memory for it, or its kernel not that file system; it is named all the same.
may_skip='TestHugePages(NeitherSleepNorWake)?|TestReflink/(btrfs|xfs)'
go test -tags integration -count=1 -p 2 -v -timeout 40m "$@" >"$log" 2>&1 &
runner=$!
trap 'kill -INT "$runner" 2>/dev/null; wait "$runner"; exit 130' INT TERM
tail -n +1 -f --pid="$runner" "$log" | tools/failures.sh verdicts
wait "$runner"
status=$?

if [ "$status" != 0 ]; then
	echo "integration: FAILED; the output of the tests that failed (all of it: $log):" >&2
	# A test's lines lie between its RUN line and the next one; keep those that failed.
	awk '/^=== RUN/ { if (bad) printf "%s", text; text = ""; bad = 0 }
		{ text = text $0 "\n" }
		/^ *--- FAIL|^panic:|^FAIL.*build failed|^# / { bad = 1 }
		END { if (bad) printf "%s", text }' "$log" | tail -n 2000
fi
grep -E "^ *--- SKIP: ($may_skip) " "$log"
if grep -E '^ *--- SKIP' "$log" | grep -vE "^ *--- SKIP: ($may_skip) "; then
	echo 'integration: FAILED: the tests above were skipped, and no skip is on the list' >&2
	status=1
fi
echo "integration: $(grep -c '^--- PASS' "$log") tests passed, $(grep -c '^--- FAIL' "$log") failed, $(grep -cE '^ *--- SKIP' "$log") skipped"
exit $status
