//go:build integration

package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodek8s "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var server *apitest.Server

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, func(s *apitest.Server) {
		server = s
		for _, o := range []client.Object{
			&nodek8s.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "godwit"}, Handler: "godwit"},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		} {
			if err := api().Create(context.Background(), o); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}))
}

// api is a client without a cache.
func api() client.Client {
	scheme, err := Scheme()
	if err == nil {
		var c client.Client
		if c, err = client.New(server.REST(), client.Options{Scheme: scheme}); err == nil {
			return c
		}
	}
	panic(err)
}

// requests counts what an operator asks, by method and path.
type requests struct {
	next http.RoundTripper
	mu   sync.Mutex
	all  []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.all = append(r.all, req.Method+" "+req.URL.String())
	r.mu.Unlock()
	return r.next.RoundTrip(req)
}

func (r *requests) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// start runs an operator until the test ends.
func start(t *testing.T, change ...func(*Options)) *requests {
	t.Helper()
	count := &requests{}
	config := server.Account("godwit-operator")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		count.next = next
		return count
	})
	var said bytes.Buffer
	o := Options{Config: config, Namespace: apitest.System, Log: slog.New(slog.NewTextHandler(&lines{to: &said}, nil))}
	for _, c := range change {
		c(&o)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return count
}

type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

func newVM(name string) *v1alpha1.VirtualMachine {
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	return vm
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := api().Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func get[T client.Object](t *testing.T, name string, o T) (T, bool) {
	t.Helper()
	err := api().Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, o)
	if err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
	return o, err == nil
}

func inPhase(t *testing.T, name string, phase v1alpha1.VMPhase) *v1alpha1.VirtualMachine {
	t.Helper()
	var vm *v1alpha1.VirtualMachine
	apitest.Eventually(t, fmt.Sprintf("VM %s is %s", name, phase), func() (bool, error) {
		vm, _ = get(t, name, &v1alpha1.VirtualMachine{})
		return vm.Status.Phase == phase, fmt.Errorf("it is %+v", vm.Status)
	})
	return vm
}

func podIs(t *testing.T, name string, there bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	apitest.Eventually(t, fmt.Sprintf("pod %s is there: %t", name, there), func() (bool, error) {
		var is bool
		pod, is = get(t, name, &corev1.Pod{})
		return is == there, nil
	})
	return pod
}

// node does what a scheduler, a kubelet and a godwitd do.
type node struct{ service *controller.Service }

func newNode(t *testing.T) node {
	t.Helper()
	st, err := store.Open(server.REST(), apitest.System)
	if err != nil {
		t.Fatal(err)
	}
	return node{controller.New(st)}
}

// boot binds a pod to a node, and has the VM run in it.
func (n node) boot(t *testing.T, pod *corev1.Pod, on string) {
	t.Helper()
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target: corev1.ObjectReference{Kind: "Node", Name: on}}
	if err := api().SubResource("binding").Create(t.Context(), pod, bind); err != nil {
		t.Fatal(err)
	}
	vm := vmOf(pod.Namespace + "." + pod.Annotations[pods.AnnotationVM]) // as a shim names it
	if _, err := n.service.Own(t.Context(), &nodev1.OwnRequest{Vm: vm, Node: on, Generation: pods.Generation(pod) - 1,
		Uid: pod.Labels[pods.LabelRecordUID]}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the status of the pod is written", func() (bool, error) {
		pod, _ = get(t, pod.Name, &corev1.Pod{})
		pod.Status.Phase = corev1.PodRunning
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady {
				return true, nil
			}
		}
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
			Status: corev1.ConditionTrue})
		err := api().Status().Update(t.Context(), pod)
		return err == nil, err
	})
}

// end is the end of a VM and of its pod.
func (n node) end(t *testing.T, vm, on, pod string) {
	t.Helper()
	rec, err := n.service.Get(t.Context(), &nodev1.GetRequest{Vm: vmOf("default." + vm)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.service.Disown(t.Context(), &nodev1.DisownRequest{Vm: rec.GetVm(), Node: on,
		Generation: rec.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	n.forget(t, pod)
}

// forget removes a pod as a kubelet does in the end.
func (n node) forget(t *testing.T, pod string) {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "default"}}
	if err := api().Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
}
