#!/bin/bash
# Builds the container image of godwitd from what make has built, as an OCI layout in a directory that is made anew:
#   tools/image.sh DIR
# It is for amd64, and for arm64 as far as that builds: without a guest. The same tree gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
said=${VERSION:-$(git describe --tags --dirty --always)}
commit=${COMMIT:-$(git rev-parse HEAD)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
die() { echo "image: $*" >&2; exit 1; }

# root lays out the root file system of an architecture. What is for the node lies below /opt/godwit, by its path there.
# A VMM comes from the node, whose /usr is mounted on this one's: hence the links.
root() {
	local to=$work/$1 programs=$2 doc=$work/$1/opt/godwit/usr/local/share/doc/godwit
	install -d "$to"/{dev,etc,proc,run,sys,usr,var} "$to"/opt/godwit/{etc/godwit,usr/local/bin,usr/local/share/godwit} "$doc"
	install -d -m 1777 "$to/tmp"
	local link
	for link in bin sbin lib lib64; do ln -s "usr/$link" "$to/$link"; done
	ln -s ../run "$to/var/run" # where plugins of CNI look for sockets
	install -m 755 "$programs"/{containerd-shim-godwit-v1,godwitd,godwit} "$to/opt/godwit/usr/local/bin/"
	sed 's|@PREFIX@|/usr/local|g' packaging/config.toml >"$to/opt/godwit/etc/godwit/config.toml"
	dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/share/doc/godwit/copyright >"$doc/copyright"
	install -m 644 "$3" "$doc/godwit.cdx.json"
}

deb=(out/godwit_*.deb)
deb=${deb[0]}
[ -e "$deb" ] || die 'out/ has no package, whose list of licences the image has too (make package)'
version=godwit.dev/godwit/api/version
mkdir -p "$work/programs"
GOARCH=arm64 CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X $version.Version=$said -X $version.Commit=$commit" \
	-o "$work/programs/" ./cmd/containerd-shim-godwit-v1 ./cmd/godwitd ./cmd/godwit
bin/tools/sbom -version "$said" -time "$SOURCE_DATE_EPOCH" -guest bin/guest/version \
	bin/{containerd-shim-godwit-v1,godwit,godwit-init,godwitd} >"$work/amd64.json"
bin/tools/sbom -version "$said" -time "$SOURCE_DATE_EPOCH" \
	"$work"/programs/{containerd-shim-godwit-v1,godwit,godwitd} >"$work/arm64.json"
root amd64 bin "$work/amd64.json"
install -m 644 bin/guest/{vmlinuz,initramfs} "$work/amd64/opt/godwit/usr/local/share/godwit/"
root arm64 "$work/programs" "$work/arm64.json"
echo 'The programs for arm64 are compiled, and were never run. There is no guest: no VM boots from a container image.' \
	>"$work/arm64/opt/godwit/usr/local/share/doc/godwit/NOT-RUN-ON-ARM64"

rm -rf "$1"
mkdir -p "$(dirname "$1")"
bin/tools/image -out "$1" -version "$said" -commit "$commit" -time "$SOURCE_DATE_EPOCH" \
	"amd64=$work/amd64,$work/amd64.json" "arm64=$work/arm64,$work/arm64.json"
echo "image: $1, $(du -sb "$1" | cut -f1) bytes, $(grep -c '"bom-ref"' "$work/amd64.json") parts"
