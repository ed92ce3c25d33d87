# PID 1 of the ground, on its disk: runs the cases, says how they ended on the third
# serial port and every second on the second one that it is alive.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
$bb mount -t cgroup2 cgroup2 /sys/fs/cgroup
$bb mkdir -p /dev/shm /dev/pts
$bb mount -t devpts devpts /dev/pts
for dir in /tmp /run /dev/shm; do $bb mount -t tmpfs tmpfs $dir; done
exec </dev/console >/dev/console 2>&1
$bb sh -c 'while :; do echo beat >/dev/ttyS1; /bin/busybox sleep 1; done' &
$bb ip link set lo up
$bb uname -a
$bb sh /ground/cases.sh
echo "exit $?" >/dev/ttyS2
$bb sync
$bb poweroff -f
