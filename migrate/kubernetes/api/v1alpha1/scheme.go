package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of all kinds here.
var GroupVersion = schema.GroupVersion{Group: "godwit.dev", Version: "v1alpha1"}

// AddToScheme makes all kinds known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&VirtualMachine{}, &VirtualMachineList{}, &VirtualMachineSet{}, &VirtualMachineSetList{},
		&VMOperation{}, &VMOperationList{}, &VMSnapshot{}, &VMSnapshotList{},
		&VMSnapshotContent{}, &VMSnapshotContentList{}, &VMSnapshotClass{}, &VMSnapshotClassList{},
		&GodwitNode{}, &GodwitNodeList{}, &VMRecord{}, &VMRecordList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
