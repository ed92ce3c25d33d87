package scale

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Times of the groups of a whole fleet.
const (
	servedBound = 3 * time.Minute
	settle      = 45 * time.Second // pending deletions are done, and the index of the store is made
	boltIdle    = time.Minute
	claimFor    = 20 * time.Second
	claimEvery  = 100 * time.Millisecond
	stormAfter  = 2 * time.Second // of claims
	day         = 24 * time.Hour
)

// fleet measures all nodes: while nothing happens, and while they come back.
func (r *run) fleet(ctx context.Context, store string) (err error) {
	w, err := openWorld(ctx, r.root, r.dir, "fleet-"+store, store == ofEtcd, 0, r.Nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	h, err := startHosts(ctx, r.Self, r.dir, r.Nodes, w.addresses, false)
	defer func() { err = errors.Join(err, h.end()) }()
	if err != nil {
		return err
	}
	if _, err := h.order(Order{Do: "start", To: r.Nodes}); err != nil {
		return err
	}
	begun := time.Now()
	last, err := h.served(ctx, 0, r.Nodes, servedBound)
	if err != nil {
		return err
	}
	r.result.Notes[store+"_first_s"] = last.Sub(begun).Seconds()
	if err := pause(ctx, settle); err != nil {
		return err
	}
	if r.wants(idleGroup) {
		if err := r.idle(ctx, store, w, h); err != nil {
			return err
		}
	}
	if r.wants(stormGroup) {
		if err := errors.Join(r.storm(ctx, store, w, h), r.restart(ctx, store, w, h)); err != nil {
			return err
		}
	}
	return r.audit(ctx, store, w, h, r.Nodes)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// idle measures what a fleet costs in which nothing happens.
func (r *run) idle(ctx context.Context, store string, w *world, h *hosts) error {
	window, base := boltIdle, int64(0)
	if w.shared {
		window = r.Idle
		_, after, err := w.space(ctx)
		if err != nil {
			return err
		}
		base = after
	}
	asked, err := h.order(Order{Do: "state", To: r.Nodes})
	if err != nil {
		return err
	}
	begun, from := time.Now(), 0.0
	if from, err = w.used(); err != nil {
		return err
	}
	if err := pause(ctx, window); err != nil {
		return err
	}
	used, err := w.used()
	if err != nil {
		return err
	}
	took := time.Since(begun).Seconds()
	r.result.set("idle_cores", store, (used-from)/took, used-from, took)
	state, err := h.order(Order{Do: "state", To: r.Nodes})
	if err != nil {
		return err
	}
	for call, n := range state.Calls {
		r.result.Notes[store+"_"+call+"_per_node_minute"] = float64(n-asked.Calls[call]) / float64(r.Nodes) / took * 60
	}
	drops := 0
	for _, n := range state.Drops {
		drops += n
	}
	pending := min(nodesWithDeletions, r.Nodes) * deletionsOfNode
	r.result.set("drops_per_debt", store, float64(drops)/float64(pending), float64(drops), float64(pending))
	if len(state.Drops) != pending {
		r.violation("%s: %d pending deletions of %d were done", store, len(state.Drops), pending)
	}
	if w.shared {
		grown, after, err := w.space(ctx)
		if err != nil {
			return err
		}
		daily := func(bytes int64) float64 { return float64(bytes) / float64(r.Nodes) / took * day.Seconds() }
		r.result.set("etcd_bytes_per_node_day", store, daily(grown-base), float64(base), float64(grown), float64(after), took)
		r.result.Notes["etcd_bytes_per_node_day_after_compaction"] = daily(after - base)
	}
	return nil
}

// storm has all nodes but few come back at once, while those claim.
func (r *run) storm(ctx context.Context, store string, w *world, h *hosts) error {
	few := min(connected, r.Nodes)
	calm, err := h.order(Order{Do: "claim", To: few, Every: claimEvery, For: claimFor})
	if err != nil {
		return err
	}
	if _, err := h.order(Order{Do: "stop", From: few, To: r.Nodes}); err != nil {
		return err
	}
	for _, p := range w.controllers {
		if err := p.forgetPeak(); err != nil {
			return err
		}
	}
	claims := make(chan *Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := h.order(Order{Do: "claim", To: few, Every: claimEvery, For: stormAfter + claimFor})
		claims <- a
		failed <- err
	}()
	if err := pause(ctx, stormAfter); err != nil {
		return err
	}
	begun := time.Now()
	from, err := w.used()
	if err != nil {
		return err
	}
	if _, err := h.order(Order{Do: "start", From: few, To: r.Nodes}); err != nil {
		return err
	}
	last, err := h.served(ctx, few, r.Nodes, servedBound)
	to, uerr := w.used() // the claims go on
	stormy := <-claims
	if err = errors.Join(err, uerr, <-failed); err != nil {
		return err
	}
	var during []float64
	for i, at := range stormy.Begun {
		if end := at.Add(time.Duration(stormy.MS[i] * float64(time.Millisecond))); end.After(begun) && at.Before(last) {
			during = append(during, stormy.MS[i])
		}
	}
	for _, f := range append(calm.Failed, stormy.Failed...) {
		r.violation("%s: claim of a connected node: %s", store, f)
	}
	if len(during) == 0 || len(calm.MS) == 0 {
		return errors.New("no claims")
	}
	r.result.set("claim_p99_ratio", store, quantile(during, 0.99)/quantile(calm.MS, 0.99),
		quantile(calm.MS, 0.5), quantile(calm.MS, 0.99), quantile(during, 0.5), quantile(during, 0.99), float64(len(during)))
	return r.came(store, w, "back", last.Sub(begun), to-from)
}

// restart has a new controller meet all nodes at once.
func (r *run) restart(ctx context.Context, store string, w *world, h *hosts) error {
	if _, err := h.order(Order{Do: "stop", To: r.Nodes}); err != nil {
		return err
	}
	if err := errors.Join(w.stopControllers(), w.startControllers(ctx)); err != nil {
		return err
	}
	h.controllers = w.addresses
	begun := time.Now()
	from, err := w.used()
	if err != nil {
		return err
	}
	if _, err := h.order(Order{Do: "start", To: r.Nodes}); err != nil {
		return err
	}
	last, err := h.served(ctx, 0, r.Nodes, servedBound)
	if err != nil {
		return err
	}
	to, err := w.used()
	if err != nil {
		return err
	}
	return r.came(store, w, "restart", last.Sub(begun), to-from)
}

// came notes how long a storm took and how much memory; the worse of two counts. Where others use the
// machine, the CPU seconds of controllers and etcd (used) tell what of a long storm was theirs.
func (r *run) came(store string, w *world, what string, took time.Duration, used float64) error {
	r.result.Notes[fmt.Sprintf("%s_%s_storm_cpu_s", store, what)] = used
	most := 0.0
	for _, p := range w.controllers {
		mib, err := p.peak()
		if err != nil {
			return err
		}
		most = max(most, mib)
	}
	for name, v := range map[string]float64{"storm_s": took.Seconds(), "storm_rss_mib": most} {
		r.result.Notes[fmt.Sprintf("%s_%s_%s", store, what, name)] = v
		raw := []float64{v}
		for _, f := range r.result.Figures {
			if f.Name == name {
				raw = append(f.Raw[store], v)
			}
		}
		r.result.set(name, store, quantile(raw, 1), raw...)
	}
	return nil
}
