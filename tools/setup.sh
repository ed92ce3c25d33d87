#!/bin/bash
# Prepares a Debian machine for the demo and the integration tests: checks make, git
# and Go, and installs the Debian packages that are missing. Does nothing, and needs no
# root, when nothing is missing. Arguments: more packages that the caller needs.
set -euo pipefail

go_wanted=1.26.8
packages=(
	qemu-system-x86 seabios ipxe-qemu # the VMM and the firmware it reads
	busybox-static isc-dhcp-client kmod cpio xz-utils zstd lz4 binutils # guest: initramfs and modules
	erofs-utils e2fsprogs # disks
	btrfs-progs xfsprogs # file systems of the tests that clone files
	ovmf systemd-boot-efi gdisk dosfstools mtools qemu-utils # VM disks: firmware, and the disks of the tests
	iproute2 iptables util-linux # nodes on one host
	systemd man-db # what checks the unit and the manual of the package
	mmdebstrap # makes clean systems for the test of an installation
	rpm # reads and installs the RPM in a test
	tini # what nerdctl run --init starts
	gcc libc6-dev # the race detector
	protobuf-compiler # generated code
	python3 python3-zstandard jq # readers of the formats that are not ours
	bash-completion zsh fish # shells that complete names in a test
	strace # slows the disk of a store that is measured
	ca-certificates
	"$@"
)

die() { echo "setup: $*" >&2; exit 1; }

check_programs() {
	command -v make >/dev/null || die "make is missing: apt-get install make"
	command -v git >/dev/null || die "git is missing: apt-get install git"
	command -v go >/dev/null || die "Go is missing: unpack Go >= $go_wanted from https://go.dev/dl/ and put its bin directory into PATH"
	local have
	have=$(go env GOVERSION)
	have=${have#go}
	have=${have%% *}
	[ "$(printf '%s\n' "$go_wanted" "$have" | sort -V | head -n1)" = "$go_wanted" ] ||
		die "Go $have is too old: unpack Go >= $go_wanted from https://go.dev/dl/"
}

missing_packages() {
	local p
	for p in "${packages[@]}"; do
		dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || echo "$p"
	done
}

# A mirror in the middle of an update refuses what its old index named: ask again.
install_packages() {
	local try
	export DEBIAN_FRONTEND=noninteractive
	for try in 1 2 3; do
		if apt-get -q update && apt-get -q install -y --no-install-recommends "$@"; then
			return
		fi
		echo "setup: attempt $try of 3 failed" >&2
		sleep $((try * 5))
	done
	die "cannot install: $*"
}

check_programs
command -v dpkg-query >/dev/null || die "this is no Debian: install these yourself: ${packages[*]}"
mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" -gt 0 ]; then
	[ "$(id -u)" = 0 ] || die "missing packages, run as root: apt-get install ${missing[*]}"
	echo "setup: installing ${missing[*]}"
	install_packages "${missing[@]}"
fi
