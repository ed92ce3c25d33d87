package authority

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"godwit.dev/godwit/migrate/pki"
)

// keeper puts a Secret of the CA back that was deleted while the CA is in use: this process has it in memory. Without
// it, the next start of an operator would be refused.
type keeper struct {
	client    kubernetes.Interface
	events    events.EventRecorder
	namespace string
	cert, key []byte
}

func keep(mgr manager.Manager, api kubernetes.Interface, authority *pki.Authority, namespace string) error {
	cert, key, err := authority.PEM()
	if err != nil {
		return err
	}
	k := &keeper{client: api, events: mgr.GetEventRecorder("godwit-operator"), namespace: namespace, cert: cert, key: key}
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == SecretName })
	if err := ctrl.NewControllerManagedBy(mgr).Named("ca").For(&corev1.Secret{}, builder.WithPredicates(ours)).
		Complete(k); err != nil {
		return fmt.Errorf("keep the CA of the cluster: %w", err)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (k *keeper) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret, err := k.client.CoreV1().Secrets(k.namespace).Get(ctx, SecretName, metav1.GetOptions{})
	switch {
	case absent(err):
		return ctrl.Result{}, k.putBack(ctx)
	case err != nil:
		return ctrl.Result{}, err
	case !bytes.Equal(secret.Data[certKey], k.cert):
		k.tell(secret, "CAReplaced", "another CA is there than the one that signed the certificates of the nodes: no "+
			"operator starts with it: "+remedy)
	}
	return ctrl.Result{}, nil
}

// putBack does nothing where the certificate of the CA was taken away as well: somebody changes the CA.
func (k *keeper) putBack(ctx context.Context) error {
	public, err := Public(ctx, k.client, k.namespace)
	if err != nil || !bytes.Equal(public, k.cert) {
		return err
	}
	secret, err := k.client.CoreV1().Secrets(k.namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName}, Data: map[string][]byte{certKey: k.cert, privateKey: k.key}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // its event comes
	}
	if err != nil {
		return fmt.Errorf("put the CA of the cluster back, Secret %s/%s: %w", k.namespace, SecretName, err)
	}
	k.tell(secret, "CAPutBack", "the CA was deleted, and nodes hold certificates of it: it is put back")
	return nil
}

func (k *keeper) tell(secret *corev1.Secret, reason, message string) {
	o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: SecretName, UID: secret.UID}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	k.events.Eventf(o, nil, corev1.EventTypeWarning, reason, "KeepCA", "%s", message)
}
