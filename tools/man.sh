#!/bin/bash
# Makes the manual pages and the shell completions from the commands themselves, into
# bin/share. VERSION and SOURCE_DATE_EPOCH (default: HEAD's) are what the pages name.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}
unset CONTAINERD_NAMESPACE GODWIT_CONFIG # defaults that a page would name
out=bin/share
rm -rf "$out"
mkdir -p "$out"/man "$out"/completion
CGO_ENABLED=0 go run -trimpath -tags docs \
	-ldflags "-X godwit.dev/godwit/api/version.Version=${VERSION:-$(git describe --tags --dirty --always)}" \
	./cmd/godwit docs "$out/man" docs/reference/configuration.md packaging/man/*.md
for shell in bash zsh fish; do
	bin/godwit completion "$shell" >"$out/completion/$shell"
done
