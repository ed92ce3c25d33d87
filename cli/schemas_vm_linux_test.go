package cli

import (
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/cli/screen"
	"godwit.dev/godwit/client"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// What inspect prints of a VM that godwitd and containerd know fits its schema, and its sizes are numbers.
func TestInspectionFitsItsSchema(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	socket := served(t, refuser{rec: &nodev1.Record{Vm: vm, Owner: &nodev1.Owner{Node: "a"}, Generation: 7},
		vms: []*nodev1.VMInfo{{Vm: vm, Status: "running", Memory: 1 << 30}}}, movesRefused{})
	for _, format := range []string{"text", "json"} {
		var out, log strings.Builder
		if code := Run(t.Context(), []string{"-n", "default", "--socket", socket, "--containerd",
			containerdWith(t, "web/shop"), "-o", format, "inspect", "web"}, &out, &log); code != 0 {
			t.Fatalf("%d: %s", code, &log)
		}
		checkAgainst(t, "inspections", out.String(), []inspectionDocument{})
		for _, want := range []string{`"memory": 1073741824`, `"generation": 7`, `"name": "shop"`, `"createdTime": "`} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %s in %s", want, &out)
			}
		}
	}
}

// What top, stats and cp print fits their schemas.
func TestFiguresFitTheirSchemas(t *testing.T) {
	some := uint64(5)
	for name, doc := range map[string]any{
		"processes": processesDocument{[]processDocument{processOf(client.GuestProcess{PID: 1, Started: 1e9})}},
		"stats": statsDocument{[]shownStats{{Stats: &client.Stats{VM: "default/web", Time: time.Unix(1e9, 0),
			Received: &some}, Percent: 0.5}}},
		"files": client.Copied{Files: 1, Skipped: 1, Names: []string{"pipe"}},
	} {
		data, err := screen.Encode(doc)
		if err != nil {
			t.Fatal(err)
		}
		checkAgainst(t, name, string(data), schemas[name].of)
	}
}
