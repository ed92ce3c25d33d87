#!/bin/bash
# Runs containerd's conformance suites on the built shim, as often as the first argument
# says, with the root file systems of the second (overlay or block; both without it), in
# mount and process namespaces of its own (an interrupted run leaves no VM) with a
# configuration of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo 'shimtest: needs root' >&2; exit 1; }
if [ -z "${SHIMTEST_INSIDE:-}" ]; then
	exec env SHIMTEST_INSIDE=1 unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" "$@"
fi
root=$PWD
count=${1:-1} mode=${2:-}
work=$(mktemp -d /tmp/gst.XXXXXX)
trap 'umount "$work/ram" 2>/dev/null; rm -rf "$work"' EXIT
mkdir -p out
cat >"$work/config.toml" <<TOML
node = "shimtest"
state_dir = "$work/lib"
run_dir = "$work/run"
ram_dir = "$work/ram"
ram_size = "4GiB"
[vmm]
kind = "qemu"
[guest]
kernel = "$root/bin/guest/vmlinuz"
initrd = "$root/bin/guest/initramfs"
TOML
cd tools/shimtest
# The runtime's preemption signal: see testbin.
CGO_ENABLED=0 go build -trimpath -ldflags '-X runtime.godebugDefault=asyncpreemptoff=1' -o "$work/testbin" ./testbin
go test -c -o "$work/shim.test" .
go build -trimpath -o "$work/report" ./report
log=$root/out/shimtest${mode:+-$mode}.log
status=0
GODWIT_CONFIG=$work/config.toml SHIMTEST_TESTBIN=$work/testbin SHIM_BINARY=$root/bin/containerd-shim-godwit-v1 PATH=$root/bin:$PATH \
	"$work/shim.test" -test.v -test.run "^TestShim$/^${mode:-.*}$" -test.count="$count" -test.timeout "$((20 * count))m" 2>&1 |
	tee "$log" | grep --line-buffered -E '^ *--- |leaked shim|^panic' || status=1
"$work/report" -runs "$count" -mode "$mode" -out "${log%.log}.json" <"$log" || status=1
exit $status
