package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/migrate/controller"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// An order for the start of godwitd asks no daemon; on a node that is no controller it is refused.
func TestRestoreAtStart(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	order := func(more string, code int, words string) {
		t.Helper()
		if err := os.WriteFile(config, fmt.Appendf(nil, "node = \"a\"\nstate_dir = %q\n%s", dir, more), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if got := Run(t.Context(), []string{"--config", config, "controller", "restore", "--at-start", "--retire", "b,c"},
			&out, &out); got != code || !strings.Contains(out.String(), words) {
			t.Errorf("exit code %d, want %d: %s, want %q", got, code, &out, words)
		}
	}
	order("[controller]\naddress = \"10.0.0.1:7443\"\n", 2, "order it there")
	if waits, _, err := record.ReadOrdered(dir); err != nil || waits != nil {
		t.Errorf("a refused order: %v, %v", waits, err)
	}
	order("", 0, "as it starts")
	waits, _, err := record.ReadOrdered(dir)
	if err != nil || waits == nil || !slices.Equal(waits.Retire, []string{"b", "c"}) {
		t.Errorf("%v, %v", waits, err)
	}
}

// The commands about the store of the records, from the order to records that change again: nodes that are missing are
// named wherever one looks, and names that are none are refused. A VM that a node does not have any more says what to
// do.
func TestControllerCommands(t *testing.T) {
	f := newFleet(t)
	f.says(0, "records change (incarnation 0)", "controller status")
	f.says(4, "nothing waits for it", "controller retire a")
	f.says(2, `retire node "nobody": the store knows none of that name, but a, b, closed, controller, roomy`,
		"controller restore --retire nobody")
	f.says(2, "it is the controller itself", "controller restore --retire controller")
	f.says(0, "nodes have not reported: a, b, controller, roomy", "controller restore --retire closed")
	f.says(0, `"retired":`, "-o json controller status")
	f.says(0, "up, not reported", "nodes")
	f.says(0, "up, cordoned, retired", "nodes")
	f.says(0, "start godwitd there; gone for good: godwit controller retire NODE", "nodes")
	f.says(6, "nodes have not said what they hold: a, b, controller, roomy",
		"migrate web --detach --operation m --to b")
	for _, node := range []string{"a", "b", "controller"} {
		if _, err := f.whole.Report(t.Context(), &nodev1.ReportRequest{Node: node}); err != nil {
			t.Fatal(err)
		}
	}
	f.says(0, "nodes have not reported: roomy", "controller status")
	f.says(0, "all nodes have reported, records are being settled", "controller retire roomy")
	f.later = controller.SettleDelay
	f.says(0, "1 VMs were not settled: godwit ps -A names them", "controller status")
	f.says(4, "it ended there", "migrate web --detach --operation m --to b")
	rec, err := f.records.Get(t.Context(), &nodev1.GetRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}})
	if text := record.LostText(rec); err != nil ||
		!strings.Contains(text, "node a had it when the copy of the store was made") ||
		!strings.Contains(text, "godwit rm --force default/web") {
		t.Errorf("%s, %v", text, err)
	}
}
