#!/bin/bash
# Builds the packages (deb, rpm) from what make has built in bin/, into a directory, with the list
# of all that they are made of:
#   tools/package.sh DIR [arm64]
# With arm64 also those for that architecture, into DIR/arm64, as far as they build: without a guest.
# The same tree gives the same bytes: every time in it is that of HEAD's commit.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$(mkdir -p "$1" && cd "$1" && pwd) other=${2-}
die() { echo "package: $*" >&2; exit 1; }

# package_version makes of what git says one that dpkg and rpm order rightly: a commit after a
# tag is newer than it, one before any tag older than every release.
package_version() {
	local said=${1/-rc/\~rc} # a candidate is older than its release
	if [[ $said =~ ^v([0-9][0-9a-z.~]*)(-([0-9]+)-g([0-9a-f]+))?(-dirty)?$ ]]; then
		echo "${BASH_REMATCH[1]}${BASH_REMATCH[3]:++${BASH_REMATCH[3]}.g${BASH_REMATCH[4]}}${BASH_REMATCH[5]:++dirty}"
		return
	fi
	local day
	day=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
	echo "0~$day.${said//-/+}"
}

# terms prints a licence. A Debian system has the long text: its place there is named.
terms() {
	[ "$kind" = deb ] || { sed 's/^/  /' "$1"; return; }
	awk '/^ *Apache License$/ { print "  Apache License, Version 2.0: /usr/share/common-licenses/Apache-2.0"; cut = 1 }
		!cut { print "  " $0 }
		/END OF TERMS AND CONDITIONS/ { cut = 0 }' "$1"
}

# copyright lists the licence of all that is in the package: ours, the modules that are
# linked into the programs, the kernel.
copyright() {
	local module version dir file
	echo 'godwit, https://godwit.dev: Apache-2.0. Its terms:'
	terms LICENSE
	echo
	echo 'vmlinuz and the modules in initramfs are the Linux kernel, GPL-2.0, of the'
	sed -n 's/^package \(.*\) \(.*\)/Debian package \1 (\2), unpacked, and less debug symbols./p' bin/guest/version
	sed -n 's/^source \(.*\)/Its source is the Debian source package \1,/p' bin/guest/version
	echo 'which `apt-get source` gives, and Debian keeps in its archive of snapshots for good. Its terms:'
	sed 's/^/  /' bin/guest/copyright
	[ "$kind" = deb ] || sed 's/^/  /' /usr/share/common-licenses/GPL-2 # which those terms name by its place in Debian
	echo
	echo 'The programs, godwit-init in the initramfs too, are linked with the Go standard library'
	echo 'and with the modules below, each under the terms that follow its name.'
	{
		echo "Go $(go env GOVERSION) $(go env GOROOT)"
		go list -deps -f '{{with .Module}}{{if .Version}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/... | LC_ALL=C sort -u
	} | while read -r module version dir; do
		echo
		echo "$module $version"
		for file in "$dir"/*; do
			case ${file##*/} in
			LICENSE.docs) ;;
			LICEN[CS]E* | NOTICE* | COPYING* | PATENTS*) terms "$file" ;;
			esac
		done
	done
}

# stage lays out what the package holds, by `make install`.
stage() {
	local doc=$STAGE/usr/share/doc/godwit units=/usr/lib/systemd/system zsh=/usr/share/zsh/site-functions
	[ "$kind" = rpm ] || { units=/lib/systemd/system; zsh=/usr/share/zsh/vendor-completions; }
	make --no-print-directory -s install DESTDIR="$STAGE" VERSION="$said" PREFIX=/usr UNITDIR=$units \
		ZSHDIR=$zsh FISHDIR=/usr/share/fish/vendor_completions.d
	gzip -9n "$STAGE"/usr/share/man/man*/*
	install -d "$doc"
	install -m 644 README.md SECURITY.md "$doc/"
	cp -r --no-preserve=mode docs "$doc/" # as README.md links to it
	install -m 644 bin/guest/version "$doc/guest-version"
	gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
	copyright >"$doc/copyright"
	install -m 644 "$sbom" "$doc/godwit.cdx.json"
	[ "$kind" = rpm ] || debian "$doc"
	find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# debian adds what Debian's policy wants.
debian() {
	install -d "$STAGE/usr/share/lintian/overrides"
	install -m 644 packaging/lintian-overrides "$STAGE/usr/share/lintian/overrides/godwit"
	printf 'godwit (%s) unstable; urgency=medium\n\n  * Commit %s.\n  * changelog.gz says what is new.\n\n -- %s  %s\n' \
		"$PACKAGE_VERSION" "$(git rev-parse HEAD)" "$(sed -n 's/^maintainer: //p' packaging/nfpm.yaml)" \
		"$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9nc >"$1/changelog.Debian.gz"
}

# build makes the package of a kind in a file.
build() {
	local out
	kind=$1 STAGE=$work/$1
	export STAGE
	[ "$PACKAGE_ARCH" != amd64 ] || stage
	out=$(bin/tools/nfpm package --config packaging/nfpm.yaml --packager "$kind" --target "$2" 2>&1) || die "nfpm: $out"
	echo "package: $2, $(stat -c %s "$2") bytes"
}

# compile makes the programs of another architecture, and the list of their parts.
compile() {
	local version=godwit.dev/godwit/api/version
	mkdir "$work/programs"
	GOARCH=$1 CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X $version.Version=$said -X $version.Commit=$(git rev-parse HEAD)" \
		-o "$work/programs/" ./cmd/containerd-shim-godwit-v1 ./cmd/godwitd ./cmd/godwit
	bin/tools/sbom -version "$said" -time "$SOURCE_DATE_EPOCH" "$work"/programs/* >"$work/parts.json"
}

# exchange puts what was compiled into what was laid out for amd64, and takes the guest out.
exchange() {
	local at=$work/$1 doc=$work/$1/usr/share/doc/godwit
	install -m 755 "$work"/programs/* "$at/usr/bin/"
	install -m 644 "$work/parts.json" "$doc/godwit.cdx.json"
	rm "$at"/usr/share/godwit/{vmlinuz,initramfs} "$doc/guest-version"
	echo 'The programs for arm64 are compiled, and were never run. There is no guest: no VM boots from a container image.' \
		>"$doc/NOT-RUN-ON-ARM64"
	find "$at" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
said=${VERSION:-$(git describe --tags --dirty --always)}
version=$(package_version "$said")
BUILT_USING=$(sed -n 's/^source //p' bin/guest/version)
[ -n "$BUILT_USING" ] || die 'bin/guest/version names no source of the kernel: rm bin/guest/version, make guest'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PACKAGE_ARCH=amd64
export PACKAGE_VERSION BUILT_USING PACKAGE_ARCH
umask 022

rm -f "$to"/godwit_*.deb "$to"/godwit-*.rpm "$to"/godwit_*.cdx.json
sbom=$to/godwit_$version.cdx.json
bin/tools/sbom -version "$version" -time "$SOURCE_DATE_EPOCH" -guest bin/guest/version \
	bin/{containerd-shim-godwit-v1,godwit,godwit-init,godwitd} >"$sbom"
echo "package: $sbom, $(grep -c '"bom-ref"' "$sbom") parts"
PACKAGE_VERSION=$version-1
build deb "$to/godwit_${PACKAGE_VERSION}_amd64.deb"
PACKAGE_VERSION=$version # the release is a field of its own
build rpm "$to/godwit-$version-1.x86_64.rpm"
[ "$other" = arm64 ] || exit 0

PACKAGE_ARCH=arm64 BUILT_USING=
compile arm64
exchange deb
exchange rpm
rm -rf "$to/arm64"
mkdir "$to/arm64"
build rpm "$to/arm64/godwit-$version-1.aarch64.rpm"
PACKAGE_VERSION=$version-1
build deb "$to/arm64/godwit_${PACKAGE_VERSION}_arm64.deb"
