#!/bin/bash
# Builds the images that packaging/kubernetes/default names, from the checkout and what make has built, as one file for
# `ctr images import`:
#   tools/k8s-images.sh FILE
# Neither docker nor a network is needed. The same tree gives the same bytes. A file that was made of the same programs
# stays (FILE.stamp). Each image has two names: its tag is devel, and the version.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} CGO_ENABLED=0
said=${VERSION:-$(git describe --tags --dirty --always)}
commit=${COMMIT:-$(git rev-parse HEAD)}
file=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
die() { echo "k8s-images: $*" >&2; exit 1; }

for f in bin/{containerd-shim-godwit-v1,godwitd,godwit} bin/guest/{vmlinuz,initramfs}; do
	[ -e "$f" ] || die "there is no $f (make build guest)"
done
for f in bin/{containerd-shim-godwit-v1,godwitd,godwit}; do
	LC_ALL=C grep -qaF "$said" "$f" || die "$f is not of $said, which the tree is: make build"
done
version=godwit.dev/godwit/api/version
(cd migrate/kubernetes && go build -trimpath -ldflags "-s -w -X $version.Version=$said -X $version.Commit=$commit" \
	-o "$work/programs/" ./cmd/godwit-operator ./cmd/godwit-node)

stamp=$(cat bin/{containerd-shim-godwit-v1,godwitd,godwit} bin/guest/{vmlinuz,initramfs} "$work"/programs/* packaging/config.toml \
	packaging/containerd-godwit.toml tools/k8s-images.sh | sha256sum | cut -d' ' -f1)
if [ -e "$file" ] && [ "$stamp" = "$(cat "$file.stamp" 2>/dev/null)" ]; then
	echo "k8s-images: $1 is of these programs"
	exit
fi
rm -f "$file.stamp"

# The operator needs nothing but its program, and its host's certificates.
install -d "$work"/operator/{etc/ssl/certs,etc/godwit,run/godwit/webhook,var/lib/godwit}
install -m 755 "$work/programs/godwit-operator" "$work/operator/"

# What is for the node lies below /opt/godwit, by its path there. A VMM comes from the node, whose /usr is mounted on
# this one's: hence the links.
node=$work/node
install -d "$node"/{dev,etc,proc,run,sys,usr,var,node}
install -d "$node"/opt/godwit/{etc/godwit,etc/containerd/conf.d,usr/local/bin,usr/local/share/godwit}
install -d -m 1777 "$node/tmp"
for link in bin sbin lib lib64; do ln -s "usr/$link" "$node/$link"; done
ln -s ../run "$node/var/run" # where plugins of CNI look for sockets
install -m 755 bin/{containerd-shim-godwit-v1,godwitd,godwit} "$work/programs/godwit-node" "$node/opt/godwit/usr/local/bin/"
install -m 644 bin/guest/{vmlinuz,initramfs} "$node/opt/godwit/usr/local/share/godwit/"
sed 's|@PREFIX@|/usr/local|g' packaging/config.toml >"$node/opt/godwit/etc/godwit/config.toml"
install -m 644 packaging/containerd-godwit.toml "$node/opt/godwit/etc/containerd/conf.d/godwit.toml"

# pack DIR FILE: a tar file that is the same for the same content.
pack() {
	tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar -cf "$2" .
}

# blob FILE: puts a file into the layout by its digest, and answers digest and size as a descriptor has them.
blob() {
	local sum
	sum=$(sha256sum "$1" | cut -d' ' -f1)
	mv "$1" "$layout/blobs/sha256/$sum"
	printf '"digest":"sha256:%s","size":%s' "$sum" "$(stat -c %s "$layout/blobs/sha256/$sum")"
}

# image NAME TREE: an image with the tree as its one layer, under each of its tags. It names no program: the manifests
# do.
image() {
	local name=$1 made diff layer config manifest tag between=
	made=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
	pack "$2" "$work/layer"
	diff=$(sha256sum "$work/layer" | cut -d' ' -f1)
	gzip -n -6 "$work/layer"
	layer=$(blob "$work/layer.gz")
	printf '{"created":"%s","architecture":"amd64","os":"linux","config":{"Labels":{"%s":"%s","%s":"%s"},"Env":["PATH=%s"]},' \
		"$made" org.opencontainers.image.version "$said" org.opencontainers.image.revision "$commit" \
		/opt/godwit/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin >"$work/config"
	printf '"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$diff" >>"$work/config"
	config=$(blob "$work/config")
	printf '{"schemaVersion":2,"mediaType":"%s","config":{"mediaType":"%s",%s},"layers":[{"mediaType":"%s",%s}]}' \
		application/vnd.oci.image.manifest.v1+json application/vnd.oci.image.config.v1+json "$config" \
		application/vnd.oci.image.layer.v1.tar+gzip "$layer" >"$work/manifest"
	manifest=$(blob "$work/manifest")
	for tag in devel "$said"; do
		printf '%s{"mediaType":"%s",%s,"annotations":{"io.containerd.image.name":"%s"},"platform":%s}' "$between" \
			application/vnd.oci.image.manifest.v1+json "$manifest" "$name:$tag" '{"architecture":"amd64","os":"linux"}'
		between=,
	done
}

layout=$work/layout
mkdir -p "$(dirname "$file")" "$layout/blobs/sha256"
operator=$(image localhost/godwit/operator "$work/operator")
node=$(image localhost/godwit/node "$work/node")
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
printf '{"schemaVersion":2,"mediaType":"%s","manifests":[%s,%s]}' application/vnd.oci.image.index.v1+json \
	"$operator" "$node" >"$layout/index.json"
pack "$layout" "$file"
echo "$stamp" >"$file.stamp"
echo "k8s-images: $1, $(stat -c %s "$file") bytes"
