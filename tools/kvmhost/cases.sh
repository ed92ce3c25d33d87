# Runs the cases inside the ground. The exit code is 1 if one failed.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
export GODWIT_GROUND=nested GODWIT_GUEST_KERNEL=/ground/vmlinuz GODWIT_GUEST_MODULES=/ground/modules
status=0
while read -r kind name pattern; do
	echo "=== $kind $name"
	case $kind in
	suite) /ground/$name.test -test.v -test.count=1 -test.timeout=30m -test.run "$pattern" || status=1 ;;
	demo)
		cd /repo
		GODWIT_VMM=$name bin/integration/demo -out /run/demo.json && result=PASS || { result=FAIL; status=1; }
		echo "    --- $result: demo/$name"
		cat /run/demo.json 2>/dev/null
		cd / ;;
	esac
done </ground/cases
exit $status
