//go:build integration

package operator

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// tokenOf an account of the namespace of godwit, as a pod has one.
func tokenOf(t *testing.T, account string) string {
	t.Helper()
	req := &authentication.TokenRequest{}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: apitest.System}}
	if err := api().SubResource("token").Create(t.Context(), owner, req); err != nil {
		t.Fatal(err)
	}
	return req.Status.Token
}

// Metrics that another host can reach are for those who may read them. The account of packaging/kubernetes/monitoring
// may; another account of the same namespace, and a reader without a token, may not.
func TestMetricsNeedAToken(t *testing.T) {
	const account = "../../../packaging/kubernetes/monitoring/account.yaml"
	if out, err := server.Kubectl(t.Context(), "", "apply", "-f", account); err != nil {
		t.Fatal(err, out)
	}
	at := strings.Replace(apitest.FreeAddress(t), "127.0.0.1", "", 1)
	start(t, func(o *Options) { o.Metrics = at })
	create(t, newVM("counted"))
	inPhase(t, "counted", v1alpha1.VMScheduling)
	asleep := newVM("uncounted")
	asleep.Spec.OperatingMode = v1alpha1.ModeStopped
	create(t, asleep)
	inPhase(t, "uncounted", v1alpha1.VMStopped)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(token string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1"+at+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, _ := get(""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	if code, _ := get("x"); code != http.StatusUnauthorized && code != http.StatusInternalServerError {
		t.Errorf("with a false one: %d", code)
	}
	if code, body := get(tokenOf(t, "godwit-node")); code != http.StatusForbidden || strings.Contains(body, "godwit_") {
		t.Errorf("with the token of a node: %d", code)
	}
	reader := tokenOf(t, "godwit-metrics")
	apitest.Eventually(t, "the one that leads shows its figures", func() (bool, error) {
		code, body := get(reader)
		if code != http.StatusOK {
			return false, fmt.Errorf("%d %s", code, body)
		}
		for _, want := range []string{`godwit_virtualmachine_ready{name="counted",namespace="default"} 0`,
			`godwit_virtualmachines{phase="Scheduling"}`, `leader_election_master_status{name="godwit-operator"} 1`,
			`controller_runtime_reconcile_total`} {
			if !strings.Contains(body, want) {
				return false, fmt.Errorf("no %s in %s", want, body)
			}
		}
		if strings.Contains(body, `name="uncounted"`) {
			return false, fmt.Errorf("a VM that should be stopped is called not ready")
		}
		return true, nil
	})
}
