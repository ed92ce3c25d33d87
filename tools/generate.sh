#!/bin/bash
# Makes the Go code of every .proto file under api/ again, the client of Cloud
# Hypervisor's API from its description, and what is made of the kinds of Kubernetes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/bin/tools:$PATH
while read -r proto; do
	protoc -I api --go_out=. --go_opt=module=godwit.dev/godwit \
		--go-ttrpc_out=. --go-ttrpc_opt=module=godwit.dev/godwit "$proto"
done < <(find api -name '*.proto' | sort)

hypervisor=vmm/cloudhypervisor/api
command -v swagger >/dev/null # before anything is removed
rm -rf $hypervisor/client $hypervisor/models
swagger -q generate client -f $hypervisor/api.yaml -t $hypervisor -A cloud-hypervisor
go run ./api/agent/lean/gen

tools/prometheusrule.sh >packaging/kubernetes/monitoring/rules.yaml

crd=$PWD/packaging/kubernetes/crd/bases
command -v controller-gen >/dev/null
rm -rf "$crd"
cd migrate/kubernetes
CGO_ENABLED=0 GOFLAGS=-trimpath controller-gen object crd:maxDescLen=0,generateEmbeddedObjectMeta=true \
	paths=./api/... output:crd:dir="$crd"
