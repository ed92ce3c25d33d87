#!/bin/bash
# Every check that needs no VM and is no test. All of them run; the last line names the
# ones that failed. Arguments: the packages that must also build for macOS.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

check() {
	local name=$1
	shift
	echo "lint: $name"
	"$@" || failed+=("$name")
}

formatted() {
	local files
	files=$(gofmt -l $(git ls-files '*.go'))
	[ -z "$files" ] || { echo "gofmt wants: $files"; return 1; }
}

# The generated files must be those of their descriptions; the tree is left as it was.
generated() {
	local kept status=0
	kept=$(mktemp -d)
	local made=(api vmm/cloudhypervisor/api migrate/kubernetes/api packaging/kubernetes/crd) dir
	cp -a --parents "${made[@]}" "$kept/"
	tools/generate.sh || status=1
	for dir in "${made[@]}"; do
		diff -r "$kept/$dir" "$dir" || status=1
	done
	rm -rf "$kept"
	return $status
}

portable() {
	GOOS=darwin CGO_ENABLED=0 go build -o /dev/null "$@" && GOOS=darwin CGO_ENABLED=0 go vet "$@"
}

# Compiled alone: nothing of it was run on such a machine.
arm64() { GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/...; }

# The module of Kubernetes, with the flags of its programs: the build cache has its packages then.
kubernetes() { (cd migrate/kubernetes && CGO_ENABLED=0 GOFLAGS=-trimpath "$@"); }

check gofmt formatted
check vet go vet ./...
check 'vet (integration)' go vet -tags integration ./...
check 'vet (upgrade)' go vet -tags integration,upgrade ./integration/install
check 'vet (points)' go vet -tags points ./...
check 'vet (docs)' go vet -tags docs ./cli
check 'vet (kvmhost)' go vet -tags kvmhost ./vmm/...
check 'vet (kubernetes)' kubernetes go vet -tags integration ./...
check golangci-lint bin/tools/golangci-lint run ./...
check 'golangci-lint (kubernetes)' kubernetes "$PWD/bin/tools/golangci-lint" run ./...
check 'generated code' generated
check 'macOS' portable "$@"
check 'arm64' arm64
check 'go.mod' go mod tidy -diff
check 'go.mod (kubernetes)' kubernetes go mod tidy -diff
check docs make --no-print-directory docs

if [ "${#failed[@]}" -gt 0 ]; then
	echo "lint: FAILED: $(IFS=,; echo "${failed[*]}")" >&2
	exit 1
fi
echo 'lint: ok'
