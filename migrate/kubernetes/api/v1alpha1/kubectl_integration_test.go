//go:build integration

package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

const manifest = `apiVersion: godwit.dev/v1alpha1
kind: VirtualMachine
metadata: {name: cli}
spec:
  template: {spec: {containers: [{name: c, image: i}]}}
`

func kubectl(t *testing.T, manifest string, args ...string) string {
	t.Helper()
	out, err := server.Kubectl(t.Context(), manifest, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Server-side apply keeps what another manager owns, kubectl wait sees conditions, and the columns show the status.
func TestKubectl(t *testing.T) {
	kubectl(t, manifest, "apply", "--server-side", "-f", "-")
	kubectl(t, `apiVersion: godwit.dev/v1alpha1
kind: VirtualMachine
metadata: {name: cli}
spec: {nodeName: n2}
`, "apply", "--server-side", "--field-manager=drainer", "-f", "-")
	kubectl(t, manifest, "apply", "--server-side", "-f", "-")
	if got := kubectl(t, "", "get", "gvm", "cli", "-o", "jsonpath={.spec.nodeName} {.spec.operatingMode}"); got !=
		"n2 Running" {
		t.Errorf("nodeName and operatingMode are %q", got)
	}
	kubectl(t, "", "patch", "gvm", "cli", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running",
"owner":{"node":"n2"},"conditions":[{"type":"Ready","status":"True","reason":"Running","message":"",
"lastTransitionTime":"2026-11-28T00:00:00Z"}]}}`)
	kubectl(t, "", "wait", "--for=condition=Ready", "--timeout=30s", "gvm/cli")
	lines := strings.Split(kubectl(t, "", "get", "gvm", "cli"), "\n")
	want := "NAME MODE PHASE READY NODE OPERATION AGE"
	if got := strings.Join(strings.Fields(lines[0]), " "); got != want {
		t.Errorf("columns are %q, want %q", got, want)
	}
	if got := strings.Join(strings.Fields(lines[1])[:5], " "); got != "cli Running Running True n2" {
		t.Errorf("the line is %q", got)
	}
}

// Each kind has its short name and its columns.
func TestColumns(t *testing.T) {
	want := map[string]string{
		"gvm": "Mode Phase Ready Node Operation Age", "gvmset": "Suspend Ready Node Phase Age",
		"vmop":   "Kind VM Phase From To Downtime Reason Age",
		"vmsnap": "Source Ready Content Bytes Age", "vmsnapcontent": "Snapshot Node Ready Digest Age",
		"vmsnapclass": "Repository Age", "gnode": "Up Cordoned VMs Free Reason Age",
		"vmrec": "Owner Generation Operation Age",
	}
	var crds struct {
		Items []struct {
			Spec struct {
				Names    struct{ ShortNames []string }
				Versions []struct{ AdditionalPrinterColumns []struct{ Name string } }
			}
		}
	}
	if err := json.Unmarshal([]byte(kubectl(t, "", "get", "crd", "-o", "json")), &crds); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, crd := range crds.Items {
		var columns []string
		for _, c := range crd.Spec.Versions[0].AdditionalPrinterColumns {
			columns = append(columns, c.Name)
		}
		got[strings.Join(crd.Spec.Names.ShortNames, " ")] = strings.Join(columns, " ")
	}
	if !maps.Equal(want, got) {
		t.Errorf("columns are %v, want %v", got, want)
	}
}
