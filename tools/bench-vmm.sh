#!/bin/bash
# What each VMM costs, side by side, into out/bench-vmm.json. With "ring", both run in the
# KVM ring, on one ground; without, QEMU runs on this host as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ "${1:-}" = ring ]; then
	tools/kvmhost.sh figures
	cp out/kvmhost.log "$log"
else
	GODWIT_BENCH_ROUNDS=${BENCH_ROUNDS:-7} go test -tags integration -count=1 -timeout 30m -v -run '^TestFigures$' ./vmm/qemu | tee "$log"
fi
tr -d '\r' <"$log" | sed -n 's/^FIGURES //p' |
	jq -s --arg commit "$(git rev-parse --short HEAD 2>/dev/null || echo none)" \
		'if length == 0 then error("no figures") else {commit: $commit, vmms: .} end' >out/bench-vmm.json
# Medians, in ms: a row for each figure and size, a column for each VMM.
jq -r 'def median: sort | if length == 0 then "-" else .[length / 2 | floor] end;
	["figure", "MiB"] + [.vmms[] | .facts.name + "/" + .facts.accel],
	(.vmms[0].figures[] as $f | [$f.name, $f.memory] + [.vmms[] | [.figures[] | select(.name == $f.name and .memory == $f.memory) | .samples[]] | median])
	| @tsv' out/bench-vmm.json | column -t -s "$(printf '\t')"
