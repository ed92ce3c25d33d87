#!/bin/busybox sh
# The network of the system on the VM disks of the tests. As "dhcp" it starts a client on
# the first NIC, and another one whenever a NIC has been plugged in. As the client's
# script it does what a lease says, and counts. As "net" it tells what the kernel has.
nic() { ls /sys/class/net | grep -v '^lo$' | head -1; }
case ${0##*/} in
dhcp)
	seen=
	client=
	while :; do
		net=$(nic)
		now=$([ -n "$net" ] && cat "/sys/class/net/$net/ifindex")
		if [ "$now" != "$seen" ]; then
			[ -n "$client" ] && kill "$client"
			seen=$now client=
			if [ -n "$net" ]; then
				ip link set "$net" up
				udhcpc -f -i "$net" -s /bin/lease -T 1 -t 10 -A 1 -O mtu -O search -O staticroutes >/dev/null 2>&1 &
				client=$!
			fi
		fi
		sleep 1
	done
	;;
net)
	net=$(nic)
	[ -n "$net" ] || exit 0
	address=$(ip -4 -o addr show dev "$net" | awk '{print $4}' | tr '\n' ,)
	route=$(ip route | awk '/^default/ {print $3}' | tr '\n' ,)
	echo "$net,$(cat "/sys/class/net/$net/address"),$(cat "/sys/class/net/$net/mtu"),${address%,},${route%,}"
	;;
lease)
	case $1 in
	deconfig) ip addr flush dev "$interface" ;;
	bound | renew)
		ip addr flush dev "$interface"
		ip link set "$interface" mtu "${mtu:-1500}"
		ip addr add "$ip/$mask" dev "$interface"
		[ -n "$router" ] && ip route replace default via "$router"
		# Whole at any moment: who tells of them reads them whenever it likes.
		echo "$ip/$mask,$router,$mtu,$dns,$search,$hostname,$staticroutes" | tr ' ' + >/lease.new
		mv /lease.new /lease
		echo $(($(cat /leases 2>/dev/null || echo 0) + 1)) >/leases.new
		mv /leases.new /leases
		;;
	esac
	;;
esac
