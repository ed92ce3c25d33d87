#!/bin/busybox sh
# PID 1 of the ground, in its initramfs: loads the modules and makes the disk its root.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "/modules/$module" || echo "ground: no module $module"; done </modules/list
until [ -b /dev/vda ]; do $bb usleep 10000; done
$bb mount -t ext4 -o ro,noload /dev/vda /root
$bb umount /proc
$bb umount /dev
exec $bb switch_root /root /bin/busybox sh /ground/ground.sh
