#!/bin/busybox sh
# Says "tick BOOT N MACS." every 50 ms: BOOT is made at boot, N counts in this
# process, MACS are those of the NICs that are there. The same goes to the first disk.
# "suite=poweroff|reset|panic" on the kernel's command line ends the VM after 3 lines.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "$module"; done </lib/list
read -r boot </proc/sys/kernel/random/boot_id
read -r cmdline </proc/cmdline
n=0
while :; do
	n=$((n + 1))
	macs=
	for nic in /sys/class/net/e*; do
		[ -e "$nic/address" ] && read -r mac <"$nic/address" && macs="$macs$mac,"
	done
	line="tick $boot $n $macs."
	echo "$line"
	[ -b /dev/vda ] && echo "$line" | $bb dd of=/dev/vda bs=512 count=1 conv=sync,fsync 2>/dev/null
	if [ $n = 3 ]; then
		case "$cmdline" in
		*suite=poweroff*) $bb poweroff -f ;;
		*suite=reset*) $bb reboot -f ;;
		*suite=panic*) echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger ;;
		esac
	fi
	$bb usleep 50000
done
