#!/bin/bash
# Fetches a second, newer QEMU from Debian's backports into bin/tools/qemu2, beside the
# system's own (the package has the same name, so it is unpacked, not installed), and runs
# the VMM suite on it and moves between both. The mirror is that of the machine's own
# sources.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$PWD/bin/tools/qemu2
die() { echo "qemu2: $*" >&2; exit 1; }

fetch() {
	local apt sources codename
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	apt=$(mktemp -d)
	trap 'rm -rf "$apt"' RETURN
	mkdir -p "$apt/parts" "$apt/lists/partial" "$apt/debs"
	sources=$(grep -l 'Components:.*main' /etc/apt/sources.list.d/debian.sources 2>/dev/null) ||
		die "no /etc/apt/sources.list.d/debian.sources to take the mirror from"
	# The first stanza is the archive's; the security one has no backports.
	awk 'NF == 0 && seen { exit } NF { seen = 1; print }' "$sources" |
		sed "s/^Suites:.*/Suites: $codename $codename-backports/" >"$apt/parts/backports.sources"
	local options=(-q -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$apt/parts" -o "Dir::State::Lists=$apt/lists" -o APT::Sandbox::User=root)
	local try
	for try in 1 2 3; do # a mirror in the middle of an update refuses what its old index named
		apt-get "${options[@]}" update && (cd "$apt/debs" && apt-get "${options[@]}" -t "$codename-backports" download qemu-system-x86 qemu-system-common qemu-system-data seabios) && break
		[ "$try" -lt 3 ] || die "cannot download QEMU from $codename-backports"
		sleep $((try * 5))
	done
	rm -rf "$to"
	mkdir -p "$to"
	for deb in "$apt"/debs/*.deb; do dpkg -x "$deb" "$to"; done
}

binary=$to/usr/bin/qemu-system-x86_64
[ -x "$binary" ] || fetch
if missing=$(ldd "$binary" | grep 'not found'); then
	die "libraries that this QEMU needs and the system has not:"$'\n'"$missing"
fi
QEMU_MODULE_DIR=$to/usr/lib/x86_64-linux-gnu/qemu "$binary" --version | head -n1
GODWIT_QEMU2=$binary GODWIT_QEMU2_DATA=$to/usr/share/qemu:$to/usr/share/seabios:/usr/share/qemu:/usr/share/seabios \
	GODWIT_QEMU2_MODULES=$to/usr/lib/x86_64-linux-gnu/qemu \
	go test -tags integration,qemu2 -count=1 -timeout 10m -run TestSecondQEMU -v ./vmm/qemu | grep -E '^ *(---|ok|FAIL|PASS)|_test.go'
