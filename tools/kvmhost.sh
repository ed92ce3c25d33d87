#!/bin/bash
# Runs the cases of the KVM ring that the arguments name (all, smoke, a VMM, a case: see
# integration/ring/cases.txt). Where KVM works they run here; elsewhere in the ground: a
# guest of QEMU 10 without KVM that offers KVM to guests of its own. docs/dev/kvmhost.md says
# why it is made like this and not otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$PWD/bin/tools/kvmhost
qemu=$PWD/bin/tools/qemu2
ring=$PWD/bin/integration/ring
work=$(mktemp -d /tmp/kvmhost.XXXXXX)
pid=
running=() # what runs the lanes of the ground
trap '[ ${#running[@]} = 0 ] || { kill "${running[@]}"; wait; } 2>/dev/null; rm -rf "$work"' EXIT
say() { echo "kvmhost: $*"; }
die() { echo "kvmhost: $*" >&2; exit 1; }
. tools/backports.sh
. tools/kvmhost/programs.sh
. tools/kvmhost/outer.sh

[ "$(id -u)" = 0 ] || die 'needs root'
mkdir -p bin/integration out
CGO_ENABLED=0 go build -trimpath -o "$ring" ./integration/cmd/ring
without=()
if ! cloud_hypervisor >/dev/null; then
	say 'NOT RUN: Cloud Hypervisor: there is no cloud-hypervisor in PATH and GODWIT_CLOUD_HYPERVISOR names none'
	without=(-without cloud-hypervisor)
fi
where=ground
reason=$("$ring" kvm 2>&1) && where=host
for name in GODWIT_CLOUD_HYPERVISOR2 GODWIT_CLOUDHV_FIRMWARE GODWIT_WINDOWS_IMAGE; do
	[ -z "${!name:-}" ] || { export "$name=$(realpath "${!name}")" && [ -f "${!name}" ]; } || die "$name: there is no file ${!name}"
done
planned=$("$ring" plan "${without[@]}" -where $where -lacking "$work/lacking" "${@:-all}") || exit 2
sed 's/^/kvmhost: NOT RUN: /' "$work/lacking"
[ -n "$planned" ] || { say "nothing here runs ${*:-all}: nothing was tested"; exit 2; }
mapfile -t planned <<<"$planned"
: >"$work/results"
: >"$work/console"
: >"$work/worked"
programs
void=0 status=0
if [ $where = host ]; then
	say 'KVM works: the cases run on this host'
	"$ring" run -results "$work/results" -kept "$work/kept" "${planned[@]}" 2>&1 | tee "$work/console" || status=$?
else
	say "no KVM on this host (${reason#ring: }): the cases run in the ground"
	ground || status=$?
fi
cp "$work/console" out/kvmhost.log
rm -rf out/kvmhost
mkdir out/kvmhost
for kept in "$work/kept" "$work"/lane?/kept; do # a tar stream, zeros after it; cut where the ground ended before its time
	[ ! -s "$kept" ] || tar -x -f "$kept" -C out/kvmhost 2>/dev/null || true
done
rmdir out/kvmhost 2>/dev/null || say 'what is left of the cases that failed is in out/kvmhost/'
"$ring" report "${without[@]}" -lacking "$work/lacking" -where $where -results "$work/results" -worked "$work/worked" -void "$void" -seconds $SECONDS -out out/kvmhost.json "${planned[@]}" || status=1
[ $status = 0 ] || die 'FAILED; the console is in out/kvmhost.log'
say 'ok'
