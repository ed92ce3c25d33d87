//go:build integration

package scale

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"godwit.dev/godwit/migrate/cluster"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
)

var (
	vms   = flag.Int("fleet.vms", 30, "VirtualMachines")
	nodes = flag.Int("fleet.nodes", 5, "fake nodes")
	idle  = flag.Duration("fleet.idle", 20*time.Second, "how long requests are counted while nothing happens")
	out   = flag.String("fleet.out", "", "file for the figures; empty: none")
)

// settle is how long the fleet may be busy after the last VM runs. Nodes look at all that they have each 15 s.
const settle = 35 * time.Second

var server *apitest.Server

func TestMain(m *testing.M) { os.Exit(apitest.Main(m, func(s *apitest.Server) { server = s })) }

// figures of a run.
type figures struct {
	VMs   int `json:"vms"`
	Nodes int `json:"nodes"`
	// BootAll is from the first object to the last VM that is Ready, in seconds.
	BootAll float64 `json:"boot_all_s"`
	// ReconcileP99 is the bound of the histogram's bucket that has the 99th percentile, of all controllers, in ms.
	ReconcileP99 float64 `json:"reconcile_p99_ms"`
	Reconciles   uint64  `json:"reconciles"`
	// IdleCalls are the requests of operator and nodes to the API server, for each VM and minute, while nothing happens.
	// Renewals of leases are not in it, nor what the API server asks itself, which was counted before.
	IdleCalls float64 `json:"idle_calls_per_vm"`
	// IdleRequests are the same of all VMs, by verb and resource, in the whole time.
	IdleRequests map[string]int `json:"idle_requests"`
	OperatorRSS  float64        `json:"operator_rss_mib"` // the most that it had
	NodeErrors   int            `json:"node_errors"`      // after the boot
}

// A fleet boots, and then costs the API server nothing, however many VMs and nodes there are. `make k8s-scale` runs it
// with 1,000 VMs on 100 nodes.
func TestFleet(t *testing.T) {
	f := newFleet(t)
	before := f.count(*idle)
	f.startOperator()
	f.startNodes(*nodes)
	began := time.Now()
	f.create(*vms)
	f.untilReady(*vms)
	f.untilSeen(*nodes, *vms)
	// A node whose first call comes before the operator leads has it refused, and calls again.
	for _, err := range f.errors.take() {
		t.Logf("while the fleet booted: %v", err)
	}
	r := figures{VMs: *vms, Nodes: *nodes, BootAll: time.Since(began).Seconds()}
	time.Sleep(settle)
	r.IdleRequests = less(f.count(*idle), before)
	for _, n := range r.IdleRequests {
		r.IdleCalls += float64(n) / float64(*vms) / idle.Minutes()
	}
	r.ReconcileP99, r.Reconciles = f.reconciles()
	r.OperatorRSS = f.operatorRSS()
	failed := f.errors.take()
	r.NodeErrors = len(failed)
	told, err := json.MarshalIndent(r, "", "  ")
	if err == nil && *out != "" {
		err = os.WriteFile(*out, append(told, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", told)
	// No round of a node, no word of it and no VM adds a request. What is left is the operator's own: each 5 s it compares
	// the store with what it has seen of it. That is two GETs of its state, and a LIST of one record. Each minute
	// it asks for the versions of the schemas. Now and then it lists the notes of Sandboxes.
	looks := int(*idle/cluster.Interval) + 2
	most := map[string]int{"LIST vmrecords": looks, "GET configmaps": 2 * looks, "LIST configmaps": 1,
		"GET customresourcedefinitions": 8 * (int(*idle/time.Minute) + 1)}
	for what, n := range r.IdleRequests {
		if n > most[what] {
			t.Errorf("%d requests %s in %s while nothing happens, at most %d of the store", n, what, *idle, most[what])
		}
	}
	if len(failed) > 0 {
		t.Errorf("%d calls of nodes failed: %v", len(failed), errors.Join(failed...))
	}
}

// less takes a count from another one.
func less(all, of map[string]int) map[string]int {
	left := map[string]int{}
	for what, n := range all {
		if n -= of[what]; n > 0 {
			left[what] = n
		}
	}
	return left
}

func vmName(i int) string   { return fmt.Sprintf("vm-%04d", i) }
func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }
