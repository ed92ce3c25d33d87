//go:build integration

package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodek8s "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const (
	system = apitest.System
	lasts  = 3 * time.Second
)

var server *apitest.Server

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, func(s *apitest.Server) {
		server = s
		var err error
		for _, o := range []client.Object{
			&nodek8s.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "godwit"}, Handler: "godwit"},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		} {
			err = errors.Join(err, api().Create(context.Background(), o))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}))
}

// api is a client of the administrator, without a cache.
func api() client.Client { return clientOf(server.REST()) }

func clientOf(config *rest.Config) client.Client {
	scheme, err := operator.Scheme()
	if err == nil {
		var c client.Client
		if c, err = client.New(config, client.Options{Scheme: scheme}); err == nil {
			return c
		}
	}
	panic(err)
}

// as is how one of our programs finds the server: with its own rights, and no others.
func as(account string) *rest.Config { return server.Account(account) }

// lines are written by many.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs something until stop is called or the test ends.
func run(t *testing.T, do func(context.Context, *slog.Logger) error) (stop func()) {
	t.Helper()
	said := &lines{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx, slog.New(slog.NewTextHandler(said, nil))) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(said)
		}
	})
	t.Cleanup(stop)
	return stop
}

// startOperator runs an operator, whose requests a test may change.
func startOperator(t *testing.T, change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return run(t, func(ctx context.Context, log *slog.Logger) error {
		config := as("godwit-operator")
		for _, c := range change {
			c(config)
		}
		return operator.Run(ctx, operator.Options{Config: config, Namespace: system, Log: log})
	})
}

// startAgent runs the agent of node a.
func startAgent(t *testing.T, g *godwitd, change ...func(*rest.Config)) (stop func()) {
	t.Helper()
	return run(t, func(ctx context.Context, log *slog.Logger) error {
		config := as("godwit-node")
		for _, c := range change {
			c(config)
		}
		return Run(ctx, Options{Config: config, Node: "a", Namespace: system, Daemon: g, Log: log, Claim: lasts})
	})
}

// newGodwitd is a fake one; it ends with the test.
func newGodwitd(t *testing.T) *godwitd {
	t.Helper()
	st, err := store.Open(server.REST(), system)
	if err != nil {
		t.Fatal(err)
	}
	g := &godwitd{records: controller.New(st)}
	t.Cleanup(g.ended.Wait)
	return g
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := api().Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// read reads an object of a name; contents have no namespace.
func read[T client.Object](t *testing.T, name string, o T) (T, bool) {
	t.Helper()
	key := types.NamespacedName{Namespace: "default", Name: name}
	if _, ok := any(o).(*v1alpha1.VMSnapshotContent); ok {
		key.Namespace = ""
	}
	err := api().Get(t.Context(), key, o)
	if err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
	return o, err == nil
}

// vmRuns has a VM run on node a, as a scheduler, a kubelet and a godwitd do. The pod is Ready on request.
func vmRuns(t *testing.T, g *godwitd, name string, isReady bool, change ...func(*v1alpha1.VirtualMachine)) *corev1.Pod {
	t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	for _, c := range change {
		c(vm)
	}
	create(t, vm)
	var pod *corev1.Pod
	apitest.Eventually(t, "VM "+name+" has a pod", func() (there bool, err error) {
		pod, there = read(t, name+"-g1-a0", &corev1.Pod{})
		return there, nil
	})
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target: corev1.ObjectReference{Kind: "Node", Name: "a"}}
	if err := api().SubResource("binding").Create(t.Context(), pod, bind); err != nil {
		t.Fatal(err)
	}
	if _, err := g.records.Own(t.Context(), &nodev1.OwnRequest{Vm: &nodev1.VM{Namespace: store.Kubernetes,
		Id: "default." + name}, Node: "a", Uid: pod.Labels[pods.LabelRecordUID]}); err != nil {
		t.Fatal(err)
	}
	if isReady {
		becomesReady(t, pod.Name)
	}
	return pod
}

func becomesReady(t *testing.T, name string) {
	t.Helper()
	apitest.Eventually(t, "pod "+name+" is Ready", func() (bool, error) {
		pod, _ := read(t, name, &corev1.Pod{})
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
			Status: corev1.ConditionTrue})
		err := api().Status().Update(t.Context(), pod)
		return err == nil, err
	})
}

func newSnapshot(name, vm string) *v1alpha1.VMSnapshot {
	return &v1alpha1.VMSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.VMSnapshotSpec{Source: v1alpha1.SnapshotSource{VMRef: &v1alpha1.VMRef{Name: vm}}}}
}

// snapshotIs waits for a condition of a VMSnapshot.
func snapshotIs(t *testing.T, name, kind string, reason decide.Reason) *v1alpha1.VMSnapshot {
	t.Helper()
	var snap *v1alpha1.VMSnapshot
	apitest.Eventually(t, fmt.Sprintf("VMSnapshot %s has %s %s", name, kind, reason), func() (bool, error) {
		snap, _ = read(t, name, &v1alpha1.VMSnapshot{})
		c := meta.FindStatusCondition(snap.Status.Conditions, kind)
		return c != nil && c.Reason == string(reason), fmt.Errorf("it is %+v", snap.Status)
	})
	return snap
}

func readySnapshot(t *testing.T, name string) *v1alpha1.VMSnapshot {
	t.Helper()
	snap := snapshotIs(t, name, decide.CondReady, decide.ReasonSnapshotReady)
	if !meta.IsStatusConditionTrue(snap.Status.Conditions, decide.CondReady) || snap.Status.Digest == "" ||
		snap.Status.BoundSnapshotContentName != decide.OrderName(snap.UID) {
		t.Fatalf("status %+v", snap.Status)
	}
	return snap
}
