// Package authority keeps the CA of a cluster in a Secret, and signs the certificates of its nodes. A node asks by a
// CertificateSigningRequest of the signer godwit.dev/node, with the token of its agent.
package authority

import (
	"bytes"
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

// PublicName is the ConfigMap with the certificate of the CA, under the same key as in the Secret. It proves that there
// is a CA, when the Secret is gone: nodes hold certificates of it.
const PublicName = SecretName

// Open reads the CA of a namespace's Secret. Where there has never been one it makes one: of several that do so, one
// wins. A CA that is gone, or another one, is refused: it would cut off the nodes.
func Open(ctx context.Context, api *rest.Config, namespace string) (*pki.Authority, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("open the CA: %w", err)
	}
	public, err := Public(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	secrets := client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
	if absent(err) {
		if public != nil {
			return nil, gone(namespace)
		}
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
	return authority, publish(ctx, client, namespace, authority)
}

// Public is the certificate of the CA that has signed those of the nodes, PEM; nil: there is none yet.
func Public(ctx context.Context, client kubernetes.Interface, namespace string) ([]byte, error) {
	o, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, PublicName, metav1.GetOptions{})
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the certificate of the CA, ConfigMap %s/%s: %w", namespace, PublicName, err)
	}
	return []byte(o.Data[certKey]), nil
}

// publish writes the certificate of the CA down, once. Another one that is there is refused.
func publish(ctx context.Context, client kubernetes.Interface, namespace string, authority *pki.Authority) error {
	cert, _, err := authority.PEM()
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: PublicName}, Data: map[string]string{certKey: string(cert)}},
		metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write the certificate of the CA, ConfigMap %s/%s: %w", namespace, PublicName, err)
	}
	public, err := Public(ctx, client, namespace)
	if err != nil {
		return err
	}
	if !bytes.Equal(public, cert) {
		return fmt.Errorf("the Secret %s/%s has another CA than the one that signed the certificates of nodes, which "+
			"ConfigMap %s has: %s: %w", namespace, SecretName, PublicName, remedy, errdefs.ErrFailedPrecondition)
	}
	return nil
}

const remedy = "put the Secret back from a copy, or change the CA of all nodes as docs/how-to/kubernetes.md says"

func gone(namespace string) error {
	return fmt.Errorf("the CA of the cluster is gone, Secret %s/%s: nodes hold certificates of it, as ConfigMap %s says: "+
		"%s: %w", namespace, SecretName, PublicName, remedy, errdefs.ErrFailedPrecondition)
}

// absent is an answer of the API server that names this object. Another 404 says nothing of it.
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
