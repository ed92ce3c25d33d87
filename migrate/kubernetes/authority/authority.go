// Package authority keeps the CA of a cluster in a Secret, and signs the certificates of its nodes. A node asks by a
// CertificateSigningRequest of the signer godwit.dev/node, with the token of its agent.
package authority

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/pki"
)

// SecretName is the Secret of the CA, and what it has.
const (
	SecretName = "godwit-ca"
	certKey    = "ca.crt"
	privateKey = "ca.key"
)

// Open reads the CA of a namespace's Secret. If there is none yet, it makes one: of several that do so, one wins.
func Open(ctx context.Context, api *rest.Config, namespace string) (*pki.Authority, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("open the CA: %w", err)
	}
	secrets := client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if absent(err) {
		fresh, ferr := newSecret()
		if ferr != nil {
			return nil, ferr
		}
		if secret, err = secrets.Create(ctx, fresh, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			secret, err = secrets.Get(ctx, SecretName, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA of the cluster, Secret %s/%s: %w", namespace, SecretName, err)
	}
	authority, err := pki.ParseAuthority(secret.Data[certKey], secret.Data[privateKey])
	if err != nil {
		return nil, fmt.Errorf("read the CA of the cluster, Secret %s/%s, which needs %s and %s: %w", namespace, SecretName,
			certKey, privateKey, err)
	}
	return authority, nil
}

// absent is an answer of the API server that names this Secret. Another 404 says nothing of it.
func absent(err error) bool {
	var said apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &said) && said.Status().Details != nil &&
		said.Status().Details.Name == SecretName
}

func newSecret() (*corev1.Secret, error) {
	authority, err := pki.NewAuthority()
	if err != nil {
		return nil, err
	}
	cert, key, err := authority.PEM()
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: SecretName},
		Data: map[string][]byte{certKey: cert, privateKey: key}}, nil
}

// checkNamespace refuses an empty one: the requests of nodes name the namespace of their account.
func checkNamespace(namespace string) error {
	if namespace == "" {
		return fmt.Errorf("sign certificates of nodes: name the namespace of their account: %w",
			errdefs.ErrInvalidArgument)
	}
	return nil
}
