package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	slow5ms = slowSync(5 * time.Millisecond)
	bursts  = 5
	rounds  = 40
	lists   = 7
	tenfold = 10
)

// claims measures 64 claims at once and one after the other, on a store whose syncs are slow.
func (r *run) claims(ctx context.Context, store string) (err error) {
	nodes := min(together, r.Nodes)
	w, err := openWorld(ctx, r.root, r.dir, "claims-"+store, store == ofEtcd, slow5ms, nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	h, err := startHosts(ctx, r.Self, r.dir, nodes, w.addresses, true)
	defer func() { err = errors.Join(err, h.end()) }()
	if err != nil {
		return err
	}
	if _, err := h.order(Order{Do: "start", To: nodes}); err != nil {
		return err
	}
	if _, err := h.served(ctx, 0, nodes, servedBound); err != nil {
		return err
	}
	var alone, atOnce []float64
	for range bursts {
		for _, o := range []struct {
			together bool
			took     *[]float64
		}{{false, &alone}, {true, &atOnce}} {
			a, err := h.order(Order{Do: "burst", To: nodes, Together: o.together})
			if err != nil {
				return err
			}
			*o.took = append(*o.took, a.Took)
		}
	}
	r.result.set("claims_speedup_64", store, median(alone)/median(atOnce), append(alone, atOnce...)...)
	return r.audit(ctx, store, w, h, nodes)
}

// growth measures one node's round, and a list of all, with a fleet and with ten.
func (r *run) growth(ctx context.Context, store string) (err error) {
	w, err := openWorld(ctx, r.root, r.dir, "growth-"+store, store == ofEtcd, 0, r.Nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var round, ps [2]float64
	for i := range round {
		if i > 0 {
			if err := errors.Join(w.stopControllers(), w.seed(ctx, r.Nodes, tenfold*r.Nodes),
				w.startControllers(ctx)); err != nil {
				return err
			}
		}
		a, b, err := r.one(ctx, w)
		if err != nil {
			return err
		}
		round[i], ps[i] = median(a), median(b)
	}
	r.result.set("round_growth_10x", store, round[1]/round[0], round[0], round[1])
	r.result.set("ps_growth_10x", store, ps[1]/ps[0], ps[0], ps[1])
	return nil
}

// one node asks.
func (r *run) one(ctx context.Context, w *world) (round, ps []float64, err error) {
	h, err := startHosts(ctx, r.Self, r.dir, 1, w.addresses, true)
	defer func() { err = errors.Join(err, h.end()) }()
	if err != nil {
		return nil, nil, err
	}
	if _, err := h.order(Order{Do: "start", To: 1}); err != nil {
		return nil, nil, err
	}
	if _, err := h.served(ctx, 0, 1, servedBound); err != nil {
		return nil, nil, err
	}
	if w.shared { // the index is made once
		if err := pause(ctx, settle); err != nil {
			return nil, nil, err
		}
	}
	a, err := h.order(Order{Do: "rounds", To: 1, Count: rounds})
	if err != nil {
		return nil, nil, err
	}
	b, err := h.order(Order{Do: "ps", To: 1, Count: lists})
	if err != nil {
		return nil, nil, err
	}
	return a.MS, b.MS, nil
}

// host has real VMs weighed by the test that knows how to make them.
func (r *run) host(ctx context.Context) error {
	out := filepath.Join(r.dir, "host.json")
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "integration", "-count=1", "-timeout", "30m", "-run",
		"TestFleetsMemory", "./integration/life")
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, r.Log, r.Log
	cmd.Env = append(os.Environ(), "GODWIT_STRESS=full", "GODWIT_PSS="+out)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("real VMs: %w", err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	var found struct{ PerVM, Shim, Holder, Daemon, VMs float64 }
	if err := json.Unmarshal(data, &found); err != nil {
		return err
	}
	r.result.set("host_pss_mib_per_vm", ofHost, found.PerVM, found.Shim, found.Holder, found.Daemon, found.VMs)
	return nil
}
