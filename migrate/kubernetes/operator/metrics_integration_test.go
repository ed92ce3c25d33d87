//go:build integration

package operator

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

// Metrics that another host can reach are for those who may read them. The account of packaging/kubernetes/monitoring
// may; another account of the same namespace, and a reader without a token, may not.
func TestMetricsNeedAToken(t *testing.T) {
	server.Readers(t)
	at := strings.Replace(apitest.FreeAddress(t), "127.0.0.1", "", 1)
	start(t, func(o *Options) { o.Metrics = at })
	create(t, newVM("counted"))
	inPhase(t, "counted", v1alpha1.VMScheduling)
	stopped := newVM("uncounted")
	stopped.Spec.OperatingMode = v1alpha1.ModeStopped
	create(t, stopped)
	inPhase(t, "uncounted", v1alpha1.VMStopped)
	url := "https://127.0.0.1" + at + "/metrics"
	reader := server.TokenOf(t, "godwit-metrics")
	apitest.Eventually(t, "the one that leads shows its figures", func() (bool, error) {
		code, body := apitest.Scrape(t, url, reader)
		if code != http.StatusOK {
			return false, fmt.Errorf("%d %s", code, body)
		}
		for _, want := range []string{`godwit_virtualmachine_ready{name="counted",namespace="default"} 0`,
			`godwit_virtualmachines{phase="Scheduling"}`, `leader_election_master_status{name="godwit-operator"} 1`,
			`controller_runtime_reconcile_total`,
			`godwit_schema_outdated{schema="virtualmachines.godwit.dev"} 0`} {
			if !strings.Contains(body, want) {
				return false, fmt.Errorf("no %s in %s", want, body)
			}
		}
		if strings.Contains(body, `name="uncounted"`) {
			return false, errors.New("a VM that should be stopped is called not ready")
		}
		return true, nil
	})
	if code, body := apitest.Scrape(t, url, ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d %s", code, body)
	}
	if code, body := apitest.Scrape(t, url, server.TokenOf(t, "godwit-node")); code != http.StatusForbidden {
		t.Errorf("with the token of a node: %d %s", code, body)
	}
}

// Under the schema of an older build the operator that leads shows which one it is. So does one that begins then and
// waits, in the same place. With the schema of this build the figure is 0 again.
func TestMetricsOfAnOlderSchema(t *testing.T) {
	server.Readers(t)
	vm := newVM("figured")
	vm.Spec.OperatingMode = v1alpha1.ModeStopped
	create(t, vm)
	at := strings.Replace(apitest.FreeAddress(t), "127.0.0.1", "", 1)
	shows := func(want string) {
		t.Helper()
		want = `godwit_schema_outdated{schema="virtualmachines.godwit.dev"} ` + want
		apitest.Eventually(t, "it shows "+want, func() (bool, error) {
			code, body := apitest.Scrape(t, "https://127.0.0.1"+at+"/metrics", server.TokenOf(t, "godwit-metrics"))
			return strings.Contains(body, want), fmt.Errorf("%d %s", code, body)
		})
	}
	t.Run("leads", func(t *testing.T) {
		start(t, func(o *Options) { o.Metrics = at })
		shows("0")
		server.Downgrade(t, "virtualmachines", "spec.operatingMode", "default", "figured")
		edit(t, "figured", `{"metadata":{"annotations":{"test/touched":"x"}}}`)
		shows("1")
	})
	t.Run("waits", func(t *testing.T) {
		back := server.Downgrade(t, "virtualmachines", "spec.operatingMode", "default", "figured")
		start(t, func(o *Options) { o.Metrics = at })
		shows("1")
		back()
		shows("0")
	})
}
