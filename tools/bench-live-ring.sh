#!/bin/bash
# Moves and wakes on Cloud Hypervisor beside its own migration and restore, in the KVM ring, into
# out/bench-live-ch.json. What was not measured is null there, and named in not_measured.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out
status=0
# A guest of 2 GiB is there twice in Cloud Hypervisor's own migration.
if [ "$(awk '$1 == "MemAvailable:" { print int($2 / 1024 / 1024) }' /proc/meminfo)" -ge 8 ]; then
	export KVMHOST_MEMORY=${KVMHOST_MEMORY:-6144}
fi
# Two grounds side by side would measure each other.
[ $# -gt 0 ] || set -- benchlive benchstart
KVMHOST_LANES=1 tools/kvmhost.sh "$@" || status=$?
tr -d '\r' <out/kvmhost.log | sed -n 's/^BENCHLIVE //p' |
	jq -s --arg commit "$(git rev-parse --short HEAD 2>/dev/null || echo none)" -f tools/bench-live-ring.jq >out/bench-live-ch.json.part
mv out/bench-live-ch.json.part out/bench-live-ch.json
jq -r '["figure", "VMM", "median", "low", "high", "unit", "goal", "rounds"],
	(.runs[] | .machine.vmm as $vmm | .figures[] | [.name, $vmm, .median // "-", .low // "-", .high // "-", .unit,
		.goal_at_most // "-", (.raw | map(select(. != null)) | length)])
	| map(if type == "number" then . * 1000 | round / 1000 else . end) | @tsv' out/bench-live-ch.json | column -t -s "$(printf '\t')"
jq -r '"stop_cont_vs_qemu \(.stop_cont_vs_qemu)", (.not_measured[] | "not measured: \(.)")' out/bench-live-ch.json
exit $status
