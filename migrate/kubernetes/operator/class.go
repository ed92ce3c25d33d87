package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// Class observes the class that an object of a namespace names by a field, or the default one if it may have that.
func (v View) Class(ctx context.Context, namespace, field, name string, orDefault bool) (decide.Class, error) {
	o := decide.Class{Field: field, Name: name}
	if name == "" && !orDefault {
		return o, nil
	}
	ns := &corev1.Namespace{}
	there, err := v.Get(ctx, types.NamespacedName{Name: namespace}, ns)
	if err != nil {
		return o, err
	}
	if there {
		o.Namespace = ns
	}
	o.Object, err = v.classOf(ctx, name, o.Namespace)
	return o, err
}

func (v View) classOf(ctx context.Context, name string, ns *corev1.Namespace) (*v1alpha1.VMSnapshotClass, error) {
	if name == "" {
		all := &v1alpha1.VMSnapshotClassList{}
		if err := v.List(ctx, all); err != nil {
			return nil, fmt.Errorf("list classes of snapshots: %w", err)
		}
		return decide.Default(all.Items, ns), nil
	}
	class := &v1alpha1.VMSnapshotClass{}
	there, err := v.Get(ctx, types.NamespacedName{Name: name}, class)
	if err != nil || !there {
		return nil, err
	}
	return class, nil
}
