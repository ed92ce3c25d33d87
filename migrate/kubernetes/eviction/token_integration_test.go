//go:build integration

package eviction_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/eviction"
	"godwit.dev/godwit/migrate/kubernetes/operator"
)

// TestTokenIsKept: the operator that leads makes a token, and the API server calls a path with it. So it is after the
// installation is applied again, after the path was changed by hand, and after the token was taken away.
func TestTokenIsKept(t *testing.T) {
	const namespace, secret = "godwit-system", "godwit-webhook"
	applied := func() {
		t.Helper()
		file := filepath.Join("..", "..", "..", "packaging", "kubernetes", "operator", "webhook.yaml")
		if out, err := server.Kubectl(t.Context(), "", "apply", "-f", file); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
	applied()
	config := &admissionregistration.ValidatingWebhookConfiguration{}
	t.Cleanup(func() { _ = api.Delete(context.Background(), config) })
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- operator.Run(ctx, operator.Options{Config: server.REST(), Namespace: namespace, Log: slog.Default(),
			Manager: func(mgr manager.Manager) error { return eviction.Rotate(mgr, namespace, secret, dir) }})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	kept := func(when, other string) (token string) {
		t.Helper()
		apitest.Eventually(t, "the token in the path "+when, func() (bool, error) {
			o := &corev1.Secret{}
			err := api.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: secret}, o)
			if err == nil {
				err = api.Get(t.Context(), types.NamespacedName{Name: eviction.ConfigurationName}, config)
			}
			if err != nil {
				return false, err
			}
			token = string(o.Data[eviction.TokenKey])
			at := config.Webhooks[0].ClientConfig
			return token != "" && token != other && len(o.Data["tls.crt"]) > 0 && len(at.CABundle) > 0 &&
				at.Service.Path != nil && *at.Service.Path == eviction.Path+"/"+token, nil
		})
		return token
	}
	first := kept("at first", "")
	applied()
	if now := kept("after it was applied again", ""); now != first {
		t.Errorf("applied again, the installation has another token")
	}
	mine := "/evictions"
	config.Webhooks[0].ClientConfig.Service.Path = &mine
	if err := api.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if now := kept("after a change by hand", ""); now != first {
		t.Errorf("after a change by hand there is another token")
	}
	if out, err := server.Kubectl(t.Context(), "", "patch", "secret", "-n", namespace, secret, "--type=json", "-p",
		`[{"op": "remove", "path": "/data/token"}]`); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	kept("after the token was taken away", first)
}
