#!/bin/busybox sh
# The system on the VM disks of the tests: it tells its state on the serial console once
# a second, and obeys what is typed there. What it knows is in memory and on the disk.
/bin/busybox mkdir -p /proc /sys /dev /mnt /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in $(cat /modules/list); do insmod "/modules/$module"; done
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo
mount -t ext4 /dev/vda2 /mnt || { echo "system: no disk"; poweroff -f; }
boots=$(($(cat /mnt/boots 2>/dev/null || echo 0) + 1))
nonce=$(cat /proc/sys/kernel/random/uuid)
echo "$boots" >/mnt/boots
echo "$nonce" >/mnt/nonce
sync
for event in /dev/input/event*; do
	(head -c 24 "$event" >/dev/null && echo "system: power button" && umount /mnt && poweroff -f) &
done
firmware=none
[ -d /sys/firmware/efi ] && firmware=uefi
size=$(cat /sys/block/vda/size)
/bin/dhcp &
ticks=0
reset=0
while :; do
	ticks=$((ticks + 1))
	# The disk is read, not remembered.
	echo 1 >/proc/sys/vm/drop_caches
	echo "system: tick=$ticks boots=$boots nonce=$nonce disk=$(cat /mnt/nonce) firmware=$firmware sectors=$size rtc=$(cat /sys/class/rtc/rtc0/since_epoch) mem=$(awk '/MemTotal/ {print $2}' /proc/meminfo) cpus=$(nproc) cmdline=$(cat /proc/cmdline | tr ' ' ,) net=$(/bin/net) lease=$(cat /lease 2>/dev/null) leases=$(cat /leases 2>/dev/null)."
	[ "$ticks" = "$reset" ] && { umount /mnt; reboot -f; }
	line=
	read -r -t 1 line || continue
	case $line in
	reset-at\ *) reset=$((ticks + ${line#reset-at })) ;;
	*) eval "$line" ;;
	esac
	echo "system: did $line"
done
