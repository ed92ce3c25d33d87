#!/bin/bash
# Runs the cases that need KVM, in the ground: a guest of QEMU 10 without KVM that offers
# KVM to guests of its own. docs/kvmhost.md says why it is made like this and not
# otherwise. The argument is which cases: smoke, or all.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:-all}
base=$PWD/bin/tools/kvmhost
work=$(mktemp -d)
qemu=$PWD/bin/tools/qemu2
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
. tools/backports.sh

starts=3    # of a ground that falls asleep
quiet=90    # seconds without a heartbeat, the VMM idle: the ground sleeps
frozen=300  # seconds without one, whatever it does
longest=3000
say() { echo "kvmhost: $*"; }
die() { echo "kvmhost: $*" >&2; exit 1; }

# Every VMM that is there, and the pattern of its cases.
cases() {
	local some='Test(Conformance|Confined|ConversationWithTheRealOne)/^(start_is|pause_stops|state_and|NIC_is_added)'
	case $which in
	smoke | demo | qemu | all) ;;
	*) die "cases $which: use all, smoke, demo or qemu" ;;
	esac
	case $which in all | qemu) echo 'suite qemu TestConformance' ;; esac
	[ -n "$(cloud_hypervisor)" ] || return 0
	case $which in
	smoke) echo "suite cloudhypervisor $some" ;;
	demo) echo 'demo cloud-hypervisor' ;;
	all)
		echo 'suite cloudhypervisor Test(Conformance|MoreRAM|Confined|ConversationWithTheRealOne)$'
		echo 'demo cloud-hypervisor'
		;;
	esac
}

cloud_hypervisor() { command -v "${GODWIT_CLOUD_HYPERVISOR:-cloud-hypervisor}" || true; }

# libraries copies what a program is linked with.
libraries() {
	ldd "$1" | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' | while read -r lib; do
		install -D "$lib" "$root$lib"
	done
}

# ordered MODULES NAME.. prints modules, each after what it needs.
ordered() {
	local dir=$1 name
	shift
	for name in "$@"; do
		awk -v name="$name" -F: '{ n = $1; sub(/.*\//, "", n); sub(/\.ko.*/, "", n); gsub(/_/, "-", n)
			w = name; gsub(/_/, "-", w); if (n == w) { k = split($2, d, " "); for (i = k; i > 0; i--) print d[i]; print $1 } }' "$dir/modules.dep"
	done | awk '!seen[$0]++'
}

kernel() {
	[ -e "$base/boot" ] || backports_get "$base" linux-image-cloud-amd64 || die "cannot fetch the ground's kernel"
	local release
	release=$(ls "$base/lib/modules")
	[ -e "$base/lib/modules/$release/modules.dep" ] || depmod -b "$base" "$release"
	local top=$base/lib/modules/$release init=$work/init
	mkdir -p "$init"/{bin,dev,proc,sys,root,modules}
	cp /bin/busybox "$init/bin/"
	install -m 755 tools/kvmhost/init.sh "$init/init"
	ordered "$top" virtio_pci virtio_blk irqbypass kvm kvm_amd tun overlay bridge veth \
		cls_u32 act_mirred sch_ingress af_packet loop erofs | while read -r module; do
		cp "$top/$module" "$init/modules/"
		basename "${module%.xz}"
	done >"$work/list"
	xz -d "$init"/modules/*.xz 2>/dev/null || true
	mv "$work/list" "$init/modules/list"
	(cd "$init" && find . | cpio --quiet -o -H newc -R 0:0 | lz4 -q -l) >"$work/initrd"
	cp "$base/boot/vmlinuz-$release" "$work/vmlinuz"
}

disk() {
	root=$work/root
	mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,usr/local/bin,ground/modules}
	cp /bin/busybox "$root/bin/"
	cp tools/kvmhost/{cases,ground}.sh "$root/ground/"
	cp "$work/cases" "$root/ground/cases"
	cp bin/guest/vmlinuz "$root/ground/"
	cp bin/guest/modules/modules.dep "$root/ground/modules/"
	ordered bin/guest/modules virtio_pci virtio_blk virtio_net virtio_console virtio-rng pvpanic-mmio pvpanic-pci |
		(cd bin/guest/modules && xargs cp --parents -t "$root/ground/modules")
	while read -r kind name _; do
		case $kind in
		suite)
			CGO_ENABLED=0 go test -c -trimpath -tags kvmhost,integration -o "$root/ground/$name.test" "./vmm/$name"
			[ "$name" != qemu ] || inner_qemu
			;;
		demo) repository ;;
		esac
	done <"$work/cases"
	if [ -n "$(cloud_hypervisor)" ]; then
		install -m 755 "$(cloud_hypervisor)" "$root/usr/local/bin/cloud-hypervisor"
		libraries "$(cloud_hypervisor)"
	fi
	mkfs.ext4 -q -d "$root" "$work/root.img" 1G
}

# inner_qemu copies the QEMU of the ground into it, with the firmware that it reads.
inner_qemu() {
	mkdir -p "$root/usr/share/qemu"
	install -D -m 755 "$qemu/usr/bin/qemu-system-x86_64" "$root/usr/bin/qemu-system-x86_64"
	libraries "$qemu/usr/bin/qemu-system-x86_64"
	cp "$qemu"/usr/share/seabios/bios-256k.bin "$qemu"/usr/share/qemu/{kvmvapic,linuxboot_dma,pvh}.bin "$root/usr/share/qemu/"
}

# repository copies what the demo needs: its own tree has programs alone.
repository() {
	local program to=$root/repo
	mkdir -p "$to"/bin/{guest,integration,tools/cni} "$root"/{etc,opt,var,usr/bin,usr/sbin,root}
	touch "$to/go.mod" "$to/Makefile"
	for program in demo probe; do
		CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$to/bin/integration/$program" "./integration/cmd/$program"
	done
	cp bin/{containerd-shim-godwit-v1,godwitd,godwit} "$to/bin/"
	cp bin/tools/{containerd,ctr,registry} "$to/bin/tools/"
	cp bin/tools/cni/{bridge,host-local,loopback} "$to/bin/tools/cni/"
	cp bin/guest/{vmlinuz,initramfs} "$to/bin/guest/"
	for program in ip nsenter; do
		install -m 755 "$(readlink -f "$(command -v $program)")" "$root/usr/bin/$program"
		libraries "$(command -v $program)"
	done
}

# ticks is the time that QEMU has worked, in hundredths of a second.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$pid/stat" 2>/dev/null || echo 0; }

boot() {
	: >"$work/console" >"$work/beat" >"$work/exit"
	QEMU_MODULE_DIR=$qemu/usr/lib/x86_64-linux-gnu/qemu "$qemu/usr/bin/qemu-system-x86_64" \
		-L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" -L /usr/share/qemu -L /usr/share/seabios \
		-nodefaults -no-user-config -display none -no-reboot \
		-accel tcg,thread=single,tb-size=1024 -cpu EPYC,+svm,+npt -M q35 -smp 1 -m 3072 \
		-kernel "$work/vmlinuz" -initrd "$work/initrd" \
		-append 'console=ttyS0 quiet mitigations=off nohz=off highres=off panic=-1' \
		-drive "file=$work/root.img,format=raw,if=none,id=root,readonly=on" -device virtio-blk-pci,drive=root \
		-serial "file:$work/console" -serial "file:$work/beat" -serial "file:$work/exit" &
	pid=$!
}

# watch ends with 0 when QEMU has, 2 when the ground sleeps, 1 when it hangs.
watch() {
	local began=$SECONDS last=$SECONDS beats=0 now worked=0
	while kill -0 "$pid" 2>/dev/null; do
		sleep 2
		now=$(stat -c %s "$work/beat")
		if [ "$now" != "$beats" ]; then
			beats=$now last=$SECONDS worked=$(ticks)
			[ $((SECONDS - began)) -lt $longest ] || { say "still running after $longest s"; return 1; }
			continue
		fi
		if [ $((SECONDS - last)) -gt $frozen ]; then
			say "no heartbeat for $frozen s"
			return 1
		fi
		if [ $((SECONDS - last)) -gt $quiet ] && [ $(($(ticks) - worked)) -lt $((quiet * 5)) ]; then
			return 2
		fi
	done
	return 0
}

run() {
	local try rc tail
	for ((try = 1; try <= starts; try++)); do
		boot
		tail -q -n +1 --pid="$pid" -F "$work/console" 2>/dev/null &
		tail=$!
		rc=0
		watch || rc=$?
		kill -9 "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
		pid=
		wait "$tail" 2>/dev/null || true
		[ $rc = 2 ] || break
		void=$try
		say "VOID: the ground fell asleep (start $try of $starts); nothing is said about godwit"
	done
	return $rc
}

result() {
	local skipped=()
	[ -n "$(cloud_hypervisor)" ] || skipped+=(cloud-hypervisor)
	mkdir -p out
	passed=$(grep '^ *--- PASS: ' "$work/console" | grep -vc 'TestConformance (' || true)
	failed=$(grep '^ *--- FAIL: ' "$work/console" | grep -vc 'TestConformance (' || true)
	jq -n --arg vmms "$(awk '{ print $1, $2 }' "$work/cases")" --arg skipped "${skipped[*]-}" --argjson passed "$passed" \
		--argjson failed "$failed" --argjson void "$void" --argjson seconds "$SECONDS" --arg which "$which" \
		'{cases: $which, run: ($vmms | split("\n")), passed: $passed, failed: $failed, skipped: ($skipped | split(" ")), void_starts: $void, seconds: $seconds}' >out/kvmhost.json
	cp "$work/console" out/kvmhost.log
}

[ -n "$(cloud_hypervisor)" ] || say 'NOT RUN: Cloud Hypervisor: no cloud-hypervisor in PATH and none named by GODWIT_CLOUD_HYPERVISOR'
cases >"$work/cases"
[ -s "$work/cases" ] || { say 'no VMM to run: nothing was tested'; exit 2; }
tools/qemu2.sh fetch
kernel
disk
void=0 passed=0 failed=0
say "the ground boots (as in $(du -h "$work/root.img" | cut -f1) of disk)"
status=0
run || status=$?
result
code=$(awk '$1 == "exit" { print $2 }' "$work/exit" | tr -d '\r')
[ $status != 2 ] || die "the ground fell asleep $starts times: no result"
[ $status = 0 ] && [ "$code" = 0 ] && [ "$passed" -gt 0 ] || die "FAILED: $failed cases, exit code ${code:-none}; the console is in out/kvmhost.log"
say "ok: $passed cases passed, $void void starts, $SECONDS s"
