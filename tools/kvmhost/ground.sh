# PID 1 of the ground, on its disk: runs the cases, says how each ended on the third
# serial port and every second on the second one that it is alive. What is left of cases
# that fail goes to the second disk.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp GODWIT_GROUND=nested
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
chown 0:36 /dev/kvm && chmod 660 /dev/kvm # as on a host with udev
for dir in /tmp /run /dev/shm; do mount -t tmpfs tmpfs $dir; done
exec </dev/console >/dev/console 2>&1
(while :; do echo beat >/dev/ttyS1; sleep 1; done) &
if grep -q ring.shell /proc/cmdline; then # for who looks into it: KVMHOST_SHELL names the socket
	while :; do setsid sh -i </dev/ttyS3 >/dev/ttyS3 2>&1; sleep 1; done &
fi
ip link set lo up
uname -a
cases=$(sed 's/.*ring\.cases=\([^ ]*\).*/\1/' /proc/cmdline | tr , ' ')
cd /repo
[ ! -e /usr/local/bin/cloud-hypervisor2 ] || export GODWIT_CLOUD_HYPERVISOR2=/usr/local/bin/cloud-hypervisor2
[ ! -e bin/integration/cloudhv.fd ] || export GODWIT_CLOUDHV_FIRMWARE=/repo/bin/integration/cloudhv.fd
bin/integration/ring run -where ground -results /dev/ttyS2 -kept /dev/vdb $cases
echo "exit $?" >/dev/ttyS2
sync
poweroff -f
