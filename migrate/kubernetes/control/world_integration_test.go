//go:build integration

package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	corev1 "k8s.io/api/core/v1"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/engine"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/schema"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/moves"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// world is a cluster around one operator at a time, which may be killed: its scheduler, kubelets and godwitds.
type world struct {
	t       *testing.T
	api     client.WithWatch
	records *controller.Service // as the nodes reach it

	mu    sync.Mutex
	full  []string              // nodes without room
	down  map[string]bool       // nodes that send no heartbeat, and do nothing
	hangs map[nodev1.Phase]bool // in which the operations of nodes stand still
	mute  map[string]bool       // nodes that answer no order
	// collects are the nodes that are away whose pods are taken away.
	collects map[string]bool
	noWake   string                       // why each wake fails; empty: none does
	boots    string                       // the image that pods have; empty: image
	at       map[string]map[string]string // state of a VM, by node
	broken   []string
	calls    int           // of peers
	faulty   bool          // calls and writes fail now and then
	slow     time.Duration // that a transfer takes
	every    int           // writes after which an operator is killed; 0: it lives
	kills    int
	answers  *Pods           // of the operator that was started last
	before   func()          // called before each write of an operator
	names    map[string]bool // of VMs that were made here
	log      io.Writer

	noSecrets   bool   // requests for Secrets fail
	noSecret    string // requests for Secrets of this name fail
	noSnapshots bool   // requests for VMSnapshots fail
	now         *process
	looked      int // requests of operators for schemas
}

// process is one operator, until it is killed.
type process struct {
	dead   atomic.Bool
	lease  *ownLease // nil: the one of the cluster
	writes atomic.Int64
	stop   context.CancelFunc
	ended  chan struct{}
}

func newWorld(t *testing.T, change ...func(*world)) *world {
	t.Helper()
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, api: api(), records: controller.New(st), at: map[string]map[string]string{},
		down: map[string]bool{}, hangs: map[nodev1.Phase]bool{},
		mute: map[string]bool{}, collects: map[string]bool{}, log: io.Discard, names: map[string]bool{}}
	for _, c := range change {
		c(w)
	}
	var nodes sync.WaitGroup
	nodes.Go(w.cluster)
	nodes.Go(w.daemons)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.operators(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		nodes.Wait()
		for _, what := range w.broken {
			t.Error(what)
		}
	})
	return w
}

// operators runs one operator after the other: the next one begins when the lease of one that was killed is over.
func (w *world) operators(ctx context.Context) {
	var all []*process
	for ctx.Err() == nil {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "godwit-operator", Namespace: apitest.System}}
		if err := w.api.Delete(context.Background(), lease); err != nil && !store.IsAbsent(err) {
			w.t.Error(err)
		}
		p := w.start(nil)
		all = append(all, p)
		w.mu.Lock()
		w.now = p
		w.mu.Unlock()
		for ctx.Err() == nil && !p.dead.Load() {
			time.Sleep(tick)
		}
		w.mu.Lock()
		w.kills++
		w.mu.Unlock()
		p.stop()
	}
	for _, p := range all {
		<-p.ended
	}
}

func (w *world) start(lease *ownLease) *process {
	ctx, stop := context.WithCancel(context.Background())
	p := &process{lease: lease, stop: stop, ended: make(chan struct{})}
	cfg := server.Account("godwit-operator")
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{w, p, next} })
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	guard, err := schema.New(cfg)
	if err != nil {
		w.t.Error(err)
	}
	notes, err := store.Open(cfg, apitest.System)
	if err != nil {
		w.t.Fatal(err)
	}
	l := &Leader{onStop: true, notes: notes, schemas: guard}
	l.open = func(_ context.Context, places engine.Places) (operator.Engine, func(context.Context) error, error) {
		st, err := store.Open(cfg, apitest.System)
		if err != nil {
			return nil, nil, err
		}
		nodes := peers{w, p}
		e := engine.New(engine.Parts{Records: controller.New(st), Peers: nodes, Places: places,
			Snapshots: snapshots{config: &config.Config{}}, Events: engine.Log{Logger: log}}, engine.Options{Node: "operator",
			Repository: func(rec *nodev1.Record) string { return "r/" + rec.GetUid() }})
		restores := (&moves.Service{Records: controller.New(st)}).Recover
		orders := NewOrders(e, nodes, restores, controller.New(st))
		return orders, func(ctx context.Context) error {
			defer e.Close()
			for ctx.Err() == nil {
				_ = e.Resume(ctx)
				time.Sleep(5 * tick)
			}
			return nil
		}, nil
	}
	go func() {
		defer close(p.ended)
		err := operator.Run(ctx, operator.Options{Config: cfg, Schemas: guard, Namespace: apitest.System, Log: log, Engine: l,
			Manager: func(mgr manager.Manager) error { return w.joined(l, mgr) }, OnStop: true, EndRound: 10 * tick})
		if err != nil && !errors.Is(err, context.Canceled) && !p.dead.Load() {
			w.t.Error(err)
		}
	}()
	return p
}

func (w *world) joined(l *Leader, mgr manager.Manager) error {
	err := l.Join(mgr)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = l.pods
	return err
}

// transport is an operator's way to the API server. Events and the lease are not counted.
type transport struct {
	w    *world
	p    *process
	next http.RoundTripper
}

func (r transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.p.dead.Load() {
		return nil, errors.New("the operator was killed")
	}
	if r.p.lease != nil && strings.Contains(req.URL.Path, "/leases") {
		return r.p.lease.answer(req)
	}
	r.w.mu.Lock()
	noSecrets, noSnapshots := r.w.noSecrets, r.w.noSnapshots
	noSecrets = noSecrets || r.w.noSecret != "" && path.Base(req.URL.Path) == r.w.noSecret
	if strings.Contains(req.URL.Path, "/customresourcedefinitions/") {
		r.w.looked++
	}
	r.w.mu.Unlock()
	if noSecrets && strings.Contains(req.URL.Path, "/secrets") ||
		noSnapshots && strings.HasSuffix(path.Dir(req.URL.Path), "/vmsnapshots") {
		return nil, errors.New("the connection was reset")
	}
	counted := req.Method != http.MethodGet && !strings.Contains(req.URL.Path, "/leases") &&
		!strings.Contains(req.URL.Path, "/events")
	if !counted {
		return r.next.RoundTrip(req)
	}
	n := int(r.p.writes.Add(1))
	r.w.mu.Lock()
	every, faulty, before := r.w.every, r.w.faulty, r.w.before
	r.w.mu.Unlock()
	if before != nil {
		before()
	}
	if faulty && n%5 == 0 {
		return nil, errors.New("the connection was reset before the request was read")
	}
	resp, err := r.next.RoundTrip(req)
	switch {
	case every > 0 && n >= every:
		r.p.dead.Store(true)
		return nil, errors.New("the operator was killed before it heard the answer")
	case faulty && n%7 == 0 && err == nil:
		_ = resp.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return resp, err
}

// fault says whether a call of a peer fails before it is carried out, or after.
func (w *world) fault(string) (before, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	return w.faulty && w.calls%3 == 0, w.faulty && w.calls%4 == 0
}

func (w *world) slowly() {
	w.mu.Lock()
	d := w.slow
	w.mu.Unlock()
	time.Sleep(d)
}

// set is the new state of a VM at a node. It never runs at two. w.mu is held.
func (w *world) set(vm, node, state string) {
	if w.at[vm] == nil {
		w.at[vm] = map[string]string{}
	}
	for other, is := range w.at[vm] {
		if state == runs && other != node && is == runs {
			w.broken = append(w.broken, fmt.Sprintf("VM %s runs on node %s and on node %s", vm, other, node))
		}
	}
	w.at[vm][node] = state
}

func (w *world) become(vm, node, state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(vm, node, state)
}

func (w *world) is(vm, node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at[vm][node]
}

func (w *world) fill(nodes ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = nodes
}

func vmNamed(id string) *nodev1.VM { return &nodev1.VM{Namespace: store.Kubernetes, Id: id} }

// create makes a VM and waits until it runs. No other test may have had its name: orders of a VM stay after it.
func (w *world) create(name string) {
	w.t.Helper()
	if all := w.orders(name); len(all) > 0 && !w.names[name] {
		w.t.Fatalf("a VM %s had orders before, as %s: use another name", name, all[0].Name)
	}
	w.names[name] = true
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	if err := w.api.Create(w.t.Context(), vm); err != nil {
		w.t.Fatal(err)
	}
	w.running(name, "a")
}

// wants changes the spec of a VM.
func (w *world) wants(name, spec string) {
	w.t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	if err := w.api.Patch(w.t.Context(), vm, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{`+spec+`}}`))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) until(name, what string, is func(*v1alpha1.VirtualMachine) bool) {
	w.t.Helper()
	var said string
	apitest.Eventually(w.t, "VM "+name+" "+what, func() (bool, error) {
		vm := &v1alpha1.VirtualMachine{}
		err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: "default", Name: name}, vm)
		said = fmt.Sprintf("%v, %+v", err, vm.Status)
		return err == nil && is(vm), errors.New(said)
	})
}

// running waits until a VM is Ready at a node, in its only pod. It runs there and nowhere else.
func (w *world) running(name, node string) *corev1.Pod {
	w.t.Helper()
	w.until(name, "runs on node "+node, func(vm *v1alpha1.VirtualMachine) bool {
		ready := false
		for _, c := range vm.Status.Conditions {
			ready = ready || c.Type == "Ready" && c.Status == metav1.ConditionTrue
		}
		return vm.Status.Phase == v1alpha1.VMRunning && vm.Status.Owner.Node == node && vm.Status.Operation == nil && ready
	})
	var all []corev1.Pod
	apitest.Eventually(w.t, "VM "+name+" has one pod", func() (bool, error) {
		all = w.pods(name)
		return len(all) == 1 && all[0].Spec.NodeName == node, fmt.Errorf("%d pods", len(all))
	})
	if got := w.is("default."+name, node); got != runs {
		w.t.Errorf("VM %s is %q on node %s", name, got, node)
	}
	return &all[0]
}

func (w *world) pods(name string) []corev1.Pod {
	w.t.Helper()
	list := &corev1.PodList{}
	if err := w.api.List(w.t.Context(), list, client.InNamespace("default"),
		client.MatchingLabels{"godwit.dev/vm": name}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}
