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
	var err error
	if o.Namespace, err = v.Namespace(ctx, namespace); err != nil {
		return o, err
	}
	if o.All, err = v.Classes(ctx); err != nil {
		return o, err
	}
	o.Object = classOf(o.All, name, o.Namespace)
	if o.Object == nil || len(decide.SecretsOf(o.Object, decide.AllKeys)) == 0 || v.Secrets == nil {
		return o, nil
	}
	_, o.NoSecret, err = v.Login(ctx, o.Object, o.Object.Spec.Repository, decide.AllKeys)
	return o, err
}

// Login reads the login that a class has for a repository, and the keys that are wanted. What is wrong with a Secret
// is an answer; what could not be read is an error. Neither is ever "none".
func (v View) Login(ctx context.Context, c *v1alpha1.VMSnapshotClass, repository string,
	keys decide.Keys) (*nodev1.LoginResponse, string, error) {
	login := &nodev1.LoginResponse{}
	for _, s := range decide.SecretsOf(c, keys) {
		secret, why := &corev1.Secret{}, ""
		err := v.Secrets.Get(ctx, types.NamespacedName{Namespace: s.Ref.Namespace, Name: s.Ref.Name}, secret)
		switch {
		case store.IsAbsent(err):
			why = s.Missing()
		case apierrors.IsForbidden(err):
			why = decide.SecretForbidden
		case err != nil:
			return nil, "", fmt.Errorf("read the Secret of spec.%s of VMSnapshotClass %s: %w", s.Field, c.Name, err)
		default:
			why = s.Read(secret, repository, login)
		}
		if why != "" {
			return nil, decide.NoSecret(c, s, why), nil
		}
	}
	return login, "", nil
}

// Grace reads what pods of a VM have at least by the class of its snapshots, in seconds.
func (v View) Grace(ctx context.Context, namespace string, rec *nodev1.Record) (int64, error) {
	if rec.GetPrefix() == "" { // no class has given its place
		return 0, nil
	}
	all, err := v.Classes(ctx)
	if err != nil {
		return 0, err
	}
	ns, err := v.Namespace(ctx, namespace)
	if err != nil {
		return 0, err
	}
	return decide.Grace(all, rec.GetPrefix(), ns), nil
}

// Classes reads all classes of snapshots.
func (v View) Classes(ctx context.Context) ([]v1alpha1.VMSnapshotClass, error) {
	all := &v1alpha1.VMSnapshotClassList{}
	if err := v.List(ctx, all); err != nil {
		return nil, fmt.Errorf("list classes of snapshots: %w", err)
	}
	return all.Items, nil
}

// Namespace reads a namespace; nil: there is none.
func (v View) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	there, err := v.Get(ctx, types.NamespacedName{Name: name}, ns)
	if err != nil || !there {
		return nil, err
	}
	return ns, nil
}

// classOf is the class of a name, or the default one; nil: there is none.
func classOf(all []v1alpha1.VMSnapshotClass, name string, ns *corev1.Namespace) *v1alpha1.VMSnapshotClass {
	if name == "" {
		return decide.Default(all, ns)
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}
