#!/bin/bash
# Makes the Go code of every .proto file under api/ again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/bin/tools:$PATH
while read -r proto; do
	protoc -I api --go_out=. --go_opt=module=godwit.dev/godwit \
		--go-ttrpc_out=. --go-ttrpc_opt=module=godwit.dev/godwit "$proto"
done < <(find api -name '*.proto' | sort)
