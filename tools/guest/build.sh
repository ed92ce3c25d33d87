#!/usr/bin/env bash
# Makes what container images are booted with, in bin/guest:
#   vmlinuz    Debian's cloud kernel, unpacked: the VMM loads its ELF file, so that no guest
#              spends its time and its RAM on it
#   modules/   its lib/modules/VERSION with modules.dep
#   initramfs  godwit-init, the modules that it loads in order, and those that it loads when the kernel asks
#   copyright  of the kernel and its modules
#   version    what they were made of
# KERNEL_DEB names a package that is already there; otherwise apt-get downloads it.
# VERSION is what godwit-init says it is. The same inputs give the same bytes.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/bin/guest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# In the order of need: what the agent's channel uses comes first.
wanted=(virtio_pci virtio_console virtio_blk erofs overlay virtio_net virtio-rng
	vmw_vsock_virtio_transport virtio_balloon)
# What a container with CAP_NET_ADMIN finds on the node of a cluster: bridges, tunnels, rules of nftables and iptables.
offered=(bridge br_netfilter veth dummy macvlan tun
	nf_tables nft_chain_nat nft_ct nft_nat nft_masq nft_redir nft_reject_inet nft_limit nft_log nft_compat nft_numgen
	nft_hash nft_fib_inet nft_tproxy nft_socket nf_conntrack_netlink
	ip_tables iptable_filter iptable_nat iptable_mangle iptable_raw ipt_REJECT
	ip6_tables ip6table_filter ip6table_nat ip6table_mangle ip6table_raw ip6t_REJECT
	xt_CT xt_LOG xt_MASQUERADE xt_REDIRECT xt_TCPMSS xt_TPROXY xt_addrtype xt_comment xt_connmark xt_conntrack xt_limit
	xt_mark xt_multiport xt_nat xt_owner xt_socket xt_state xt_statistic xt_tcpudp)

fetch() {
	if [[ -n ${KERNEL_DEB:-} ]]; then
		cp "$KERNEL_DEB" "$work/kernel.deb"
		return
	fi
	local package
	package=$(apt-cache depends linux-image-cloud-amd64 |
		awk '/Depends: linux-image-/ {print $2; exit}')
	[[ -n $package ]] || { echo "no linux-image-cloud-amd64 in apt's lists: apt-get update" >&2; exit 1; }
	(cd "$work" && apt-get download "$package" && mv "$package"_*.deb kernel.deb)
}

# unpack takes the ELF file out of a bzImage: its header says where the packed kernel lies.
unpack() {
	local image=$1 sectors offset length magic
	read_at() { od -An -v -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
	piece() { dd if="$image" bs=1M iflag=skip_bytes,count_bytes skip="$offset" count="$1" status=none; }
	[[ $(od -An -c -j 514 -N 4 "$image" | tr -d ' ') == HdrS ]] || { echo "$image is no bzImage" >&2; return 1; }
	sectors=$(read_at 497 1)
	offset=$(($(read_at 584 4) + (sectors + 1) * 512))
	length=$(($(read_at 588 4) - 4)) # its last word is the unpacked size
	piece "$length" >"$work/packed"
	magic=$(od -An -v -t x1 -N 4 "$work/packed" | tr -d ' ')
	case $magic in
	02214c18) lz4 -q -d -c "$work/packed" ;;
	28b52ffd) zstd -q -d -c "$work/packed" ;;
	fd377a58) xz -d -c "$work/packed" ;;
	1f8b*) piece "$((length + 4))" | gzip -d -c ;; # gzip has that word itself
	*) echo "$image is packed in a way that is not known: $magic" >&2; return 1 ;;
	esac
}

# needs prints the files of a module in loading order, itself last.
needs() {
	modprobe -d "$work/deb" -S "$release" --show-depends "$1" |
		awk '$1 == "insmod" && $2 !~ /arch/ {print $2}' # no accelerators of a CPU that may lack them
}

# order prints the modules in loading order, each after what it needs.
order() {
	local name
	for name in "${wanted[@]}"; do
		needs "$name"
	done | awk '!seen[$0]++'
}

# expand puts a module where it is to be, as the kernel takes it, without types for BPF programs, which every load
# would check, and without signatures.
expand() {
	case $1 in
	*.xz) xz -d -c "$1" >"$2" ;;
	*.zst) zstd -q -d -c "$1" >"$2" ;;
	*) cp "$1" "$2" ;;
	esac
	objcopy --strip-debug --remove-section=.BTF --remove-section=.comment "$2"
}

# offer puts the modules that are loaded when the kernel asks for them into a directory, packed. Its file needs has a
# line for each: the module, and what is loaded before it. Its file aliases has the other names of modules.
offer() {
	local dir=$1 name path
	for name in "${offered[@]}"; do
		needs "$name"
	done | LC_ALL=C sort -u >"$work/offered"
	while read -r path; do
		name=$(basename "${path%%.ko*}")
		# shellcheck disable=SC2046 # words
		echo "$name" $(needs "$name" | head -n -1 | sed 's|.*/||; s|\.ko.*||')
		expand "$path" "$dir/$name.ko"
		gzip -n -9 "$dir/$name.ko"
	done <"$work/offered" >"$dir/needs"
	awk 'NR == FNR {known[$1]; next} $1 == "alias" && $3 in known {print $2, $3}' \
		"$dir/needs" "$work/deb/lib/modules/$release/modules.alias" | LC_ALL=C sort >"$dir/aliases"
}

mkdir -p "$out" "$work/deb" "$work/root/modules/offered" "$work/root/sbin"
fetch
dpkg -x "$work/kernel.deb" "$work/deb"
kernel=$(echo "$work"/deb/boot/vmlinuz-*)
release=${kernel##*/vmlinuz-}
depmod -b "$work/deb" "$release"

order | while read -r path; do
	name=$(basename "${path%%.ko*}").ko
	expand "$path" "$work/root/modules/$name"
	echo "$name"
done >"$work/list"
mv "$work/list" "$work/root/modules/list"
offer "$work/root/modules/offered"
ln -s /init "$work/root/sbin/modprobe" # what the kernel runs to load a module

version=${VERSION:-$(git -C "$root" describe --always 2>/dev/null || echo unknown)}
(cd "$root" && CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags "-s -w -buildid= -E _godwit_entry -X godwit.dev/godwit/api/version.Version=$version" \
	-o "$work/root/init" ./cmd/godwit-init)
find "$work/root" -exec touch -h -d @0 {} +
(cd "$work/root" && find . | LC_ALL=C sort |
	cpio --quiet --reproducible -o -H newc -R 0:0) >"$work/cpio"
lz4 -q -l -12 --favor-decSpeed "$work/cpio" "$work/initramfs"

rm -rf "$out/modules"
cp -a "$work/deb/lib/modules/$release" "$out/modules"
unpack "$kernel" >"$work/vmlinux"
strip --strip-all -o "$work/vmlinuz" "$work/vmlinux" # and without what follows the ELF file
install -m 644 "$work/vmlinuz" "$out/vmlinuz"
install -m 644 "$work/initramfs" "$out/initramfs"
install -m 644 "$work"/deb/usr/share/doc/*/copyright "$out/copyright" # the kernel's, for whoever ships it
{
	echo "godwit-init $version"
	echo "kernel $release"
	echo "package $(dpkg-deb -f "$work/kernel.deb" Package) $(dpkg-deb -f "$work/kernel.deb" Version)"
	echo "source $(dpkg-deb -f "$work/kernel.deb" Built-Using)" # the signed kernel is of another's source
	(cd "$out" && sha256sum vmlinuz initramfs)
} | tee "$out/version"
