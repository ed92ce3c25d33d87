package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
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
	if o.Object, err = v.classOf(ctx, name, o.Namespace); err != nil || o.Object == nil ||
		o.Object.Spec.PullSecretRef == nil || v.Secrets == nil {
		return o, err
	}
	_, o.NoSecret, err = v.Login(ctx, o.Object, o.Object.Spec.Repository)
	return o, err
}

// Login reads the login that a class has for a repository. What is wrong with the Secret is an answer; what could not
// be read is an error.
func (v View) Login(ctx context.Context, c *v1alpha1.VMSnapshotClass, repository string) (*nodev1.LoginResponse, string,
	error) {
	ref, secret := c.Spec.PullSecretRef, &corev1.Secret{}
	err := v.Secrets.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, secret)
	why := ""
	switch {
	case store.IsAbsent(err):
		why = decide.SecretMissing
	case apierrors.IsForbidden(err):
		why = decide.SecretForbidden
	case err != nil:
		return nil, "", fmt.Errorf("read the Secret of VMSnapshotClass %s: %w", c.Name, err)
	default:
		var login *nodev1.LoginResponse
		if login, why = decide.LoginOf(secret, repository); why == "" {
			return login, "", nil
		}
	}
	return nil, decide.NoSecret(c, why), nil
}

// Grace reads what pods of a VM have at least by the class of its snapshots, in seconds.
func (v View) Grace(ctx context.Context, namespace string, rec *nodev1.Record) (int64, error) {
	if rec.GetPrefix() == "" { // no class has given its place
		return 0, nil
	}
	all, ns := &v1alpha1.VMSnapshotClassList{}, &corev1.Namespace{}
	if err := v.List(ctx, all); err != nil {
		return 0, fmt.Errorf("list classes of snapshots: %w", err)
	}
	there, err := v.Get(ctx, types.NamespacedName{Name: namespace}, ns)
	if err != nil {
		return 0, err
	}
	if !there {
		ns = nil
	}
	return decide.Grace(all.Items, rec.GetPrefix(), ns), nil
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
