#!/bin/bash
# Builds the Debian package from what make has built in bin/, into a directory:
#   tools/package.sh DIR
# The same tree gives the same bytes: every time in it is that of HEAD's commit.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$(mkdir -p "$1" && cd "$1" && pwd)
die() { echo "package: $*" >&2; exit 1; }

# debian_version makes of what git says one that dpkg orders rightly: a commit after a
# tag is newer than it, one before any tag older than every release.
debian_version() {
	local said=${1/-rc/\~rc} # a candidate is older than its release
	if [[ $said =~ ^v([0-9][0-9a-z.~]*)(-([0-9]+)-g([0-9a-f]+))?(-dirty)?$ ]]; then
		echo "${BASH_REMATCH[1]}${BASH_REMATCH[3]:++${BASH_REMATCH[3]}.g${BASH_REMATCH[4]}}${BASH_REMATCH[5]:++dirty}"
		return
	fi
	local day
	day=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
	echo "0~$day.${said//-/+}"
}

# terms prints a licence, the long text that every Debian system has by its place there.
terms() {
	awk '/^ *Apache License$/ { print "  Apache License, Version 2.0: /usr/share/common-licenses/Apache-2.0"; cut = 1 }
		!cut { print "  " $0 }
		/END OF TERMS AND CONDITIONS/ { cut = 0 }' "$1"
}

# copyright lists the licence of all that is in the package: ours, the modules that are
# linked into the programs, the kernel.
copyright() {
	local module version dir file
	echo 'godwit, https://godwit.dev: Apache-2.0, see /usr/share/common-licenses/Apache-2.0.'
	echo
	echo 'vmlinuz and the modules in initramfs are the Linux kernel, GPL-2.0, of the'
	sed -n 's/^package \(.*\) \(.*\)/Debian package \1 (\2), unpacked, and less debug symbols./p' bin/guest/version
	sed -n 's/^source \(.*\)/Its source is the Debian source package \1,/p' bin/guest/version
	echo 'which `apt-get source` gives, and Debian keeps in its archive of snapshots for good. Its terms:'
	sed 's/^/  /' bin/guest/copyright
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

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
said=${VERSION:-$(git describe --tags --dirty --always)}
DEB_VERSION=$(debian_version "$said")-1
BUILT_USING=$(sed -n 's/^source //p' bin/guest/version)
[ -n "$BUILT_USING" ] || die 'bin/guest/version names no source of the kernel: rm bin/guest/version, make guest'
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export DEB_VERSION BUILT_USING STAGE
umask 022

make --no-print-directory -s install DESTDIR="$STAGE" VERSION="$said" PREFIX=/usr UNITDIR=/lib/systemd/system \
	ZSHDIR=/usr/share/zsh/vendor-completions FISHDIR=/usr/share/fish/vendor_completions.d
gzip -9n "$STAGE"/usr/share/man/man*/*
doc=$STAGE/usr/share/doc/godwit
install -d "$doc" "$STAGE/usr/share/lintian/overrides"
install -m 644 README.md SECURITY.md "$doc/"
cp -r --no-preserve=mode docs "$doc/" # as README.md links to it
install -m 644 bin/guest/version "$doc/guest-version"
install -m 644 packaging/lintian-overrides "$STAGE/usr/share/lintian/overrides/godwit"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
printf 'godwit (%s) unstable; urgency=medium\n\n  * Commit %s.\n  * changelog.gz says what is new.\n\n -- %s  %s\n' \
	"$DEB_VERSION" "$(git rev-parse HEAD)" "$(sed -n 's/^maintainer: //p' packaging/nfpm.yaml)" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" |
	gzip -9nc >"$doc/changelog.Debian.gz"
copyright >"$doc/copyright"
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

rm -f "$to"/godwit_*.deb
deb=$to/godwit_${DEB_VERSION}_amd64.deb
said=$(bin/tools/nfpm package --config packaging/nfpm.yaml --packager deb --target "$deb" 2>&1) || die "nfpm: $said"
echo "package: $deb, $(stat -c %s "$deb") bytes"
