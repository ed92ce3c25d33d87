#!/bin/busybox sh
# Says "tick BOOT N DEVICES." every 50 ms: BOOT is made at boot, N counts in this
# process. DEVICES are the MACs of the NICs that are there, and serial=line of each disk but
# the first. The same goes to the first disk.
# "suite=poweroff|reset|panic" on the kernel's command line ends the VM after 3 lines.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "$module"; done </lib/list
read -r boot </proc/sys/kernel/random/boot_id
read -r cmdline </proc/cmdline
case "$cmdline" in
*suite=port*) for port in /dev/vport*; do $bb dd if=/dev/zero of="$port" bs=64k & done ;;
esac
n=0
while :; do
	n=$((n + 1))
	devices=
	for nic in /sys/class/net/e*; do
		[ -e "$nic/address" ] && read -r mac <"$nic/address" && devices="$devices$mac,"
	done
	for disk in /sys/block/vd[b-z]; do
		[ -e "$disk/serial" ] || continue
		read -r serial <"$disk/serial" # its line has no end, of which read complains
		read -r text <"/dev/${disk##*/}" && devices="$devices$serial=$text,"
	done 2>/dev/null
	line="tick $boot $n $devices."
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
