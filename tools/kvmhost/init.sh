#!/bin/busybox sh
# PID 1 of the ground: makes a root out of the disk, runs its cases, says how they ended
# on the third serial port and that it is alive on the second one.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "/modules/$module" || echo "ground: no module $module"; done </modules/list
$bb sh -c 'while :; do echo beat >/dev/ttyS1; /bin/busybox sleep 1; done' &
until [ -b /dev/vda ]; do $bb usleep 10000; done
$bb mount -t ext4 -o ro,noload /dev/vda /root
for dir in proc sys dev; do $bb mount -o bind "/$dir" "/root/$dir"; done
$bb mkdir -p /root/dev/shm /root/dev/pts
for dir in tmp run dev/shm; do $bb mount -t tmpfs tmpfs "/root/$dir"; done
$bb ip link set lo up
$bb uname -a
$bb chroot /root /bin/busybox sh /ground/cases.sh
echo "exit $?" >/dev/ttyS2
$bb sync
$bb poweroff -f
