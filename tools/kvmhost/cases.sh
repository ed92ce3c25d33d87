# Runs the cases inside the ground, or on a host with KVM; GROUND is where they lie. The
# exit code is 1 if one failed.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
export GODWIT_GROUND=nested GODWIT_GUEST_KERNEL=/ground/vmlinuz GODWIT_GUEST_MODULES=/ground/modules
status=0
while read -r vmm pattern; do
	echo "=== VMM $vmm"
	/ground/$vmm.test -test.v -test.count=1 -test.timeout=30m -test.run "$pattern" || status=1
done </ground/cases
exit $status
