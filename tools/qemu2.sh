#!/bin/bash
# Fetches a second, newer QEMU from Debian's backports into bin/tools/qemu2 and runs the
# VMM suite on it and moves between both. `qemu2.sh fetch` only fetches it.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$PWD/bin/tools/qemu2
die() { echo "qemu2: $*" >&2; exit 1; }

. tools/backports.sh

binary=$to/usr/bin/qemu-system-x86_64
[ -x "$binary" ] || backports_get "$to" qemu-system-x86 qemu-system-common qemu-system-data seabios ||
	die "cannot fetch QEMU"
if missing=$(ldd "$binary" | grep 'not found'); then
	die "libraries that this QEMU needs and the system has not:"$'\n'"$missing"
fi
QEMU_MODULE_DIR=$to/usr/lib/x86_64-linux-gnu/qemu "$binary" --version | head -n1
[ "${1:-}" != fetch ] || exit 0
GODWIT_QEMU2=$binary GODWIT_QEMU2_DATA=$to/usr/share/qemu:$to/usr/share/seabios:/usr/share/qemu:/usr/share/seabios \
	GODWIT_QEMU2_MODULES=$to/usr/lib/x86_64-linux-gnu/qemu \
	go test -tags integration,qemu2 -count=1 -timeout 10m -run TestSecondQEMU -v ./vmm/qemu | grep -E '^ *(---|ok|FAIL|PASS|panic)|^ +[a-z_0-9]+\.go:[0-9]+: '
