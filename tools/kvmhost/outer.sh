# To be sourced: the ground, seen from outside: its disk, its lanes, its starts, its sleep.

starts=3                      # of a ground that falls asleep
quiet=${KVMHOST_QUIET:-90}    # seconds without a heartbeat, the VMM idle: the ground sleeps
frozen=300                    # seconds without one, whatever it does
longest=14400
memory=${KVMHOST_MEMORY:-3072} # MiB

# libraries copies what a program is linked with.
libraries() {
	ldd "$1" 2>/dev/null | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' | while read -r lib; do
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

# disk makes the ground's root: the tree of the repository has programs alone.
disk() {
	local program file package name to
	root=$work/root
	to=$root/repo
	mkdir -p "$root"/{bin,dev,etc,opt,proc,sys,tmp,run,root,var,usr/bin,usr/sbin,usr/local/bin,ground} "$to"/bin/{guest,integration,ring,tools/cni}
	cp /bin/busybox "$root/bin/"
	for name in $(busybox --list); do
		[ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
	done
	cp tools/kvmhost/ground.sh "$root/ground/"
	echo 127.0.0.1 localhost >"$root/etc/hosts" # as every host has it
	touch "$to/go.mod" "$to/Makefile"
	cp bin/{containerd-shim-godwit-v1,godwitd,godwit} "$to/bin/"
	cp bin/integration/{ring,probe,treelist,standin} "$to/bin/integration/"
	cp bin/tools/{containerd,ctr,crictl,registry,docker-registry} "$to/bin/tools/"
	cp bin/tools/cni/{bridge,host-local,loopback,portmap} "$to/bin/tools/cni/"
	cp bin/guest/{vmlinuz,initramfs} "$to/bin/guest/"
	mkdir -p "$to/bin/guest/modules"
	cp bin/guest/modules/modules.dep "$to/bin/guest/modules/"
	ordered bin/guest/modules virtio_pci virtio_blk virtio_net virtio_console virtio-rng pvpanic-mmio pvpanic-pci |
		(cd bin/guest/modules && xargs cp --parents -t "$to/bin/guest/modules")
	while read -r file package; do
		mkdir -p "$to/$package"
		cp "bin/ring/$file" "$to/bin/ring/"
		[ ! -d "$package/testdata" ] || cp -r "$package/testdata" "$to/$package/"
	done <"$work/programs"
	[ ! -e bin/ring/testbin ] || cp bin/ring/testbin "$to/bin/ring/"
	[ ! -d bin/ring/points ] || { cp -r bin/ring/points "$to/bin/ring/" && ln -s ../../guest "$to/bin/ring/points/guest"; }
	[ ! -e "$work/disks.tar" ] || mv "$work/disks.tar" "$to/bin/integration/"
	[ -z "${GODWIT_CLOUDHV_FIRMWARE:-}" ] || install -m 644 "$GODWIT_CLOUDHV_FIRMWARE" "$to/bin/integration/cloudhv.fd"
	install -D -m 644 -t "$root/usr/share/OVMF" /usr/share/OVMF/OVMF_{CODE,VARS}_4M.fd
	for program in ip tc nsenter unshare mkfs.erofs mkfs.ext4 dumpe2fs; do
		install -m 755 "$(readlink -f "$(command -v $program)")" "$root/usr/bin/$program"
		libraries "$(command -v $program)"
	done
	inner_qemu
	if program=$(cloud_hypervisor); then
		install -m 755 "$program" "$root/usr/local/bin/cloud-hypervisor"
		libraries "$program"
	fi
	[ -z "${GODWIT_CLOUD_HYPERVISOR2:-}" ] || install -m 755 "$GODWIT_CLOUD_HYPERVISOR2" "$root/usr/local/bin/cloud-hypervisor2"
	mkfs.ext4 -q -d "$root" "$work/root.img" 2G
}

# inner_qemu copies the QEMU of the ground into it, with the firmware that it reads.
inner_qemu() {
	mkdir -p "$root/usr/share/qemu"
	install -D -m 755 "$qemu/usr/bin/qemu-system-x86_64" "$root/usr/bin/qemu-system-x86_64"
	libraries "$qemu/usr/bin/qemu-system-x86_64"
	cp "$qemu"/usr/share/seabios/bios-256k.bin "$qemu"/usr/share/qemu/{kvmvapic,linuxboot_dma,pvh}.bin "$root/usr/share/qemu/"
}

# ticks is the time that QEMU has worked, in hundredths of a second.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$pid/stat" 2>/dev/null || echo 0; }

# boot CASE.. starts a ground: the lane that it is has a directory of its own.
boot() {
	: >"$lane/beat" >"$lane/exit"
	QEMU_MODULE_DIR=$qemu/usr/lib/x86_64-linux-gnu/qemu "$qemu/usr/bin/qemu-system-x86_64" \
		-L "$qemu/usr/share/qemu" -L "$qemu/usr/share/seabios" -L /usr/share/qemu -L /usr/share/seabios \
		-nodefaults -no-user-config -display none -no-reboot \
		-accel tcg,thread=single,tb-size=1024 -cpu EPYC,+svm,+npt -M q35 -smp 1 -m "$memory" \
		-kernel "$work/vmlinuz" -initrd "$work/initrd" \
		-append "console=ttyS0 loglevel=3 mitigations=off nohz=off highres=off panic=-1 ${KVMHOST_SHELL:+ring.shell }ring.cases=$(IFS=,; echo "$*")" \
		-drive "file=$work/root.img,format=raw,if=none,id=root,readonly=on" -device virtio-blk-pci,drive=root \
		-drive "file=$lane/kept,format=raw,if=none,id=kept" -device virtio-blk-pci,drive=kept \
		-serial "file:$lane/serial" -serial "file:$lane/beat" -serial "file:$lane/exit" ${KVMHOST_SHELL:+-serial "unix:$KVMHOST_SHELL,server=on,wait=off"} 2>"$lane/qemu" &
	pid=$!
}

# tell writes down each case that has ended since, with what QEMU has worked for it. A QEMU that has ended has no ticks
# any more: what it had at its last heartbeat counts then.
tell() {
	local ended now
	mapfile -t ended < <(sed -n 's/^{"case":"\([^"]*\)".*/\1/p' "$lane/exit")
	[ ${#ended[@]} -gt "$told" ] || return 0
	now=$(ticks)
	[ "$now" -ge "$worked" ] || now=$worked
	echo "${ended[-1]} $(((now - since) / 100))" >>"$lane/worked"
	told=${#ended[@]} since=$now
}

# watch ends with 0 when QEMU has, 2 when the ground sleeps, 1 when it hangs.
watch() {
	local began=$SECONDS last=$SECONDS beats=0 now worked=0 told=0 since=0
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.5
		tell
		now=$(stat -c %s "$lane/beat")
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
	tell
	return 0
}

# lane CASE.. runs cases in a ground of their own. What was told before it fell asleep stays told: the next start goes
# on with the cases that have no result yet.
lane() {
	local try rc tail left void=0
	trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null' EXIT
	trap 'exit 143' TERM
	mkdir "$lane"
	: >"$lane/results"
	truncate -s 256M "$lane/kept"
	for ((try = 1; try <= starts; try++)); do
		mapfile -t left < <("$ring" left -results "$lane/results" "$@")
		: >"$lane/serial"
		boot "${left[@]}"
		tail -q -n +1 --pid="$pid" -F "$lane/serial" 2>/dev/null &
		tail=$!
		rc=0
		watch || rc=$?
		kill -9 "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
		pid=
		wait "$tail" 2>/dev/null || true
		cat "$lane/serial" >>"$lane/console"
		tr -d '\r' <"$lane/exit" | grep '^{' >>"$lane/results" || true
		[ $rc = 2 ] || break
		void=$try
		say "VOID: the ground fell asleep (start $try of $starts); nothing is said about godwit"
	done
	echo "$void" >"$lane/void"
	[ $rc != 2 ] || say "the ground fell asleep $starts times"
	[ $rc != 0 ] || [ "$(tr -d '\r' <"$lane/exit" | awk '$1 == "exit" { print $2 }')" != 0 ] || return 0
	cat "$lane/qemu" >&2 # it says which signal has ended it
	return 1
}

# lanes is how many grounds run side by side. A ground has one processor and 3 GiB of RAM: a host with two processors
# and 8 GiB to spare has two.
lanes() {
	local n=1
	[ "$(nproc)" -lt 2 ] || [ "$(awk '$1 == "MemAvailable:" { print int($2 / 1024 / 1024) }' /proc/meminfo)" -lt 8 ] || n=2
	n=${KVMHOST_LANES:-$n}
	[ -z "${KVMHOST_SHELL:-}" ] || n=1
	echo $((n < 2 ? 1 : 2))
}

# ground makes the ground and runs the planned cases in it, divided among the lanes.
ground() {
	local all lane cases rc=0 n=0
	tools/qemu2.sh fetch
	kernel
	disk
	mapfile -t all < <("$ring" lanes -lanes "$(lanes)" "${planned[@]}")
	say "the ground boots ${#all[@]} times, side by side (with $(du -h "$work/root.img" | cut -f1) of disk)"
	for cases in "${all[@]}"; do
		lane=$work/lane$((++n))
		# shellcheck disable=SC2086 # one word for each case
		lane $cases &
		running+=($!)
	done
	for lane in "${running[@]}"; do wait "$lane" || rc=1; done
	running=()
	for lane in "$work"/lane?; do
		cat "$lane/console" >>"$work/console"
		cat "$lane/results" >>"$work/results"
		cat "$lane/worked" >>"$work/worked" 2>/dev/null || true
		void=$((void + $(cat "$lane/void")))
	done
	return $rc
}
