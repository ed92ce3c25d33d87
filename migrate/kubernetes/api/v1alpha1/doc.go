// Package v1alpha1 is the API of godwit on Kubernetes: VMs, sets of VMs, operations, snapshots, nodes and records.
// The schemas in packaging/kubernetes/crd/bases are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=godwit.dev
package v1alpha1
