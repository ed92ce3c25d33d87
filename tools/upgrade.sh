#!/bin/bash
# Runs VMs of the release before under the programs of the package that was just built.
# That release is the newest tag before HEAD; while there is none, the first build that
# could do it all. Its programs and guest are built once, into bin/upgrade/COMMIT.
set -euo pipefail
cd "$(dirname "$0")/.."
first=2549a31bacba092a28ce72fab6fb014878945b45

base=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null) || base=$first
git cat-file -e "$base^{commit}" 2>/dev/null ||
	timeout 60 git fetch -q --unshallow --tags 2>/dev/null || true
if ! commit=$(git rev-parse -q --verify "$base^{commit}"); then
	# The formats of the first build are still shown, by files in the unit tests.
	echo "integration: NOT RUN: TestUpgrade (VMs, snapshots and records of $base under these programs): this clone has no such commit; git fetch --unshallow --tags, make upgrade" >&2
	exit 0
fi

to=$PWD/bin/upgrade/${commit:0:12}
if [ ! -e "$to/complete" ]; then
	echo "upgrade: building $base"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	git archive "$commit" | tar -x -C "$work"
	version=godwit.dev/godwit/api/version
	(cd "$work" && mkdir bin && CGO_ENABLED=0 go build -trimpath \
		-ldflags "-s -w -X $version.Version=$base -X $version.Commit=$commit" -o bin/ ./cmd/...)
	VERSION=$base "$work/tools/guest/build.sh" >/dev/null
	rm -rf "$to"
	mkdir -p "$to/guest"
	cp "$work"/bin/{containerd-shim-godwit-v1,godwitd,godwit} "$to/"
	cp "$work"/bin/guest/{vmlinuz,initramfs} "$to/guest/"
	touch "$to/complete"
fi
GODWIT_UPGRADE_FROM=$to go test -tags integration,upgrade -count=1 -timeout 10m -run TestUpgrade -v ./integration/install |
	grep -E '^ *(---|ok|FAIL|PASS|panic)|^ +[a-z_0-9]+\.go:[0-9]+: '
