//go:build integration

package authority_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/authority"
	"godwit.dev/godwit/migrate/pki"
)

// caObjects are the two of the CA: the Secret, and the ConfigMap that proves that there is one.
type caObjects struct {
	*testing.T
	kubernetes.Interface
}

func (c caObjects) secret() *corev1.Secret {
	c.Helper()
	o, err := c.CoreV1().Secrets(system).Get(c.Context(), authority.SecretName, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return o
}

func (c caObjects) deleteSecret() {
	c.Helper()
	if err := c.CoreV1().Secrets(system).Delete(c.Context(), authority.SecretName, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c caObjects) putSecret(ca *pki.Authority) {
	c.Helper()
	cert, key, err := ca.PEM()
	if err == nil {
		_, err = c.CoreV1().Secrets(system).Create(c.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: authority.SecretName}, Data: map[string][]byte{"ca.crt": cert, "ca.key": key}}, metav1.CreateOptions{})
	}
	if err != nil {
		c.Fatal(err)
	}
}

// TestLostCA: the Secret of the CA is deleted. The operator that leads has it in memory, and puts it back. Where none
// does, the next operator makes no new one, which would cut the nodes off; and it takes no other one. Once the
// certificate of the CA is taken away too, there is a new CA: each node asks for a certificate of it by itself.
func TestLostCA(t *testing.T) {
	api := as(t, controller, nil)
	ca, err := authority.Open(t.Context(), api, system)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	o := caObjects{t, client}
	node := certificate(t, as(t, authority.Account, agent(t, "lost")), "lost")
	stop := operate(t, api, ca)
	if got, err := node.Ensure(t.Context(), time.Now()); err != nil || !got {
		t.Fatalf("the certificate of a node: %v %v", got, err)
	}
	before := o.secret()
	o.deleteSecret()
	apitest.Eventually(t, "the Secret that is put back", func() (bool, error) {
		now, err := client.CoreV1().Secrets(system).Get(t.Context(), authority.SecretName, metav1.GetOptions{})
		return err == nil && now.UID != before.UID && bytes.Equal(now.Data["ca.key"], before.Data["ca.key"]), err
	})
	apitest.Eventually(t, "its event", func() (bool, error) {
		all, err := client.EventsV1().Events(system).List(t.Context(), metav1.ListOptions{})
		return err == nil && bytes.Contains([]byte(all.String()), []byte("CAPutBack")), err
	})
	stop()
	o.deleteSecret()
	refused := func(what, because string) {
		t.Helper()
		if _, err := authority.Open(t.Context(), api, system); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), because) || !strings.Contains(err.Error(), "from a copy") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("the Secret is gone", "is gone")
	if _, err := client.CoreV1().Secrets(system).Get(t.Context(), authority.SecretName, metav1.GetOptions{}); err == nil {
		t.Error("a new CA was made")
	}
	other, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	o.putSecret(other)
	refused("another CA is there", "has another CA")
	o.deleteSecret()
	o.putSecret(ca)
	if _, err := authority.Open(t.Context(), api, system); err != nil {
		t.Errorf("the Secret is back: %v", err)
	}
	o.deleteSecret()
	if err := client.CoreV1().ConfigMaps(system).Delete(t.Context(), authority.PublicName,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh, err := authority.Open(t.Context(), api, system)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operate(t, api, fresh))
	for _, want := range []bool{true, false} {
		if got, err := node.Ensure(t.Context(), time.Now()); err != nil || got != want {
			t.Errorf("under the new CA the node gets a certificate: %v, want %v: %v", got, want, err)
		}
	}
	cert, _, err := fresh.PEM()
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.LoadOf("lost", pki.In(node.Dir))
	if err != nil {
		t.Fatal(err)
	}
	if of, err := id.IssuedBy(cert); err != nil || !of {
		t.Errorf("the certificate is of the new CA: %v %v", of, err)
	}
}
