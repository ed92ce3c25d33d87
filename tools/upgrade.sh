#!/bin/bash
# Runs VMs of earlier releases under the programs of the package that was just built: of the first build that could
# do it all, and of the newest tag before HEAD, if there is one. The programs and the guest of each are built once,
# into bin/upgrade/COMMIT.
set -euo pipefail
cd "$(dirname "$0")/.."
first=2549a31bacba092a28ce72fab6fb014878945b45
version=godwit.dev/godwit/api/version

# programs builds what a release was, in bin/upgrade, and prints where.
programs() {
	local base=$1 commit=$2 to=$PWD/bin/upgrade/${2:0:12} work
	if [ ! -e "$to/complete" ]; then
		echo "upgrade: building $base" >&2
		# Each step by &&: the caller asks whether this fails, and there bash goes on after an error.
		work=$(mktemp -d) && git archive "$commit" | tar -x -C "$work" && mkdir "$work/bin" &&
			(cd "$work" && CGO_ENABLED=0 go build -trimpath \
				-ldflags "-s -w -X $version.Version=$base -X $version.Commit=$commit" -o bin/ ./cmd/...) &&
			VERSION=$base "$work/tools/guest/build.sh" >/dev/null && rm -rf "$to" && mkdir -p "$to/guest" &&
			cp "$work"/bin/{containerd-shim-godwit-v1,godwitd,godwit} "$to/" &&
			cp "$work"/bin/guest/{vmlinuz,initramfs} "$to/guest/" && touch "$to/complete" && rm -rf "$work" || return
	fi
	echo "$to"
}

# from runs the VMs of a release.
from() {
	local base=$1 commit to
	if ! commit=$(git rev-parse -q --verify "$base^{commit}"); then
		# The formats of the first build are still shown, by files in the unit tests.
		echo "integration: NOT RUN: TestUpgrade (VMs, snapshots and records of $base under these programs): this clone has no such commit; git fetch --unshallow --tags, make upgrade" >&2
		return
	fi
	to=$(programs "$base" "$commit") || return
	echo "upgrade: from $base"
	GODWIT_UPGRADE_FROM=$to go test -tags integration,upgrade -count=1 -timeout 10m -run TestUpgrade -v ./integration/install |
		grep -E '^ *(---|ok|FAIL|PASS|panic)|^ +[a-z_0-9]+\.go:[0-9]+: '
}

git cat-file -e "$first^{commit}" 2>/dev/null || timeout 60 git fetch -q --unshallow --tags 2>/dev/null || true
bases=("$first")
if tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null); then
	bases+=("$tag")
else
	echo 'upgrade: there is no tag before this commit: from the first build alone'
fi
[ "${1-}" != -n ] || { printf 'upgrade: would start from %s\n' "${bases[@]}"; exit; }
status=0
for base in "${bases[@]}"; do from "$base" || status=1; done
exit $status
