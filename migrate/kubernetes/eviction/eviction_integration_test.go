//go:build integration

package eviction_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"godwit.dev/godwit/migrate/controller"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/eviction"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/kubernetes/store"
	"godwit.dev/godwit/migrate/transition"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

var (
	server *apitest.Server
	api    client.Client
)

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, func(s *apitest.Server) {
		server = s
		scheme, err := operator.Scheme()
		if err == nil {
			api, err = client.New(s.REST(), client.Options{Scheme: scheme})
		}
		if err == nil {
			err = api.Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}))
}

// installed is the configuration of packaging/kubernetes, for a webhook that is a Service there.
func installed(t *testing.T) *admissionregistration.ValidatingWebhookConfiguration {
	t.Helper()
	text, err := os.ReadFile("../../../packaging/kubernetes/operator/webhook.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n---\n") {
		config := &admissionregistration.ValidatingWebhookConfiguration{}
		if err := yaml.Unmarshal([]byte(part), config); err != nil {
			t.Fatal(err)
		}
		if config.Name == eviction.ConfigurationName && len(config.Webhooks) == 1 {
			return config
		}
	}
	t.Fatalf("no %s with one webhook in %s", eviction.ConfigurationName, text)
	return nil
}

// serve has the API server ask a webhook of ours before it evicts.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	hook := httptest.NewTLSServer(eviction.Webhook{Client: api,
		View: operator.View{Reader: api, Engine: true, OnStop: true}})
	t.Cleanup(hook.Close)
	url := hook.URL + eviction.Path
	config := installed(t)
	config.Webhooks[0].ClientConfig = admissionregistration.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})}
	if err := api.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), config) })
	vm := running(t, "probe-"+strings.ToLower(t.Name()), v1alpha1.EvictionLive)
	apitest.Eventually(t, "the webhook is asked", func() (bool, error) { // a new configuration counts a moment later
		err := evict(t, vm.pod)
		return apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "VMOperation "), err
	})
	vm.forget(t)
	return hook
}

// machine is a VM that runs on node a, and a budget of it.
type machine struct {
	name   string
	pod    *corev1.Pod
	budget *policyv1.PodDisruptionBudget
}

func running(t *testing.T, name string, strategy v1alpha1.EvictionStrategy) machine {
	t.Helper()
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
	vm.Spec.Eviction.Strategy = strategy
	create(t, vm)
	st, err := store.Open(server.REST(), "default")
	if err != nil {
		t.Fatal(err)
	}
	id := &nodev1.VM{Namespace: store.Kubernetes, Id: "default." + name}
	change, err := transition.Ensure(transition.State{}, &nodev1.EnsureRequest{Vm: id}, string(vm.UID))
	if err == nil {
		_, err = st.Apply(t.Context(), id, 0, change)
	}
	if err != nil {
		t.Fatal(err)
	}
	rec, err := controller.New(st).Own(t.Context(), &nodev1.OwnRequest{Vm: id, Node: "a", Uid: string(vm.UID)})
	if err != nil {
		t.Fatal(err)
	}
	rec.Owner, rec.Generation = nil, rec.Generation-1 // as it was when its pod was made
	pod, err := pods.Make(pods.Input{VM: vm, Record: rec, OnStop: true})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.RuntimeClassName = nil // none is installed
	pod.Labels["budget"] = name
	create(t, pod)
	if err := api.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: "default"}, Target: corev1.ObjectReference{Kind: "Node", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	m := machine{name: name, pod: pod}
	m.reload(t)
	m.pod.Status.Phase = corev1.PodRunning
	m.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := api.Status().Update(t.Context(), m.pod); err != nil {
		t.Fatal(err)
	}
	one := intstr.FromInt32(1)
	m.budget = &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"budget": name}}}}
	create(t, m.budget)
	m.allow(t, 0)
	return m
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := api.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// allow does what the controller of budgets does: no such controller runs here.
func (m *machine) allow(t *testing.T, n int32) {
	t.Helper()
	m.budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: m.budget.Generation, DisruptionsAllowed: n,
		CurrentHealthy: 1 + n, DesiredHealthy: 1, ExpectedPods: 1 + n}
	if err := api.Status().Update(t.Context(), m.budget); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) reload(t *testing.T) bool {
	t.Helper()
	err := api.Get(t.Context(), client.ObjectKeyFromObject(m.pod), m.pod)
	if err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
	if m.budget != nil {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(m.budget), m.budget); err != nil {
			t.Fatal(err)
		}
	}
	return err == nil
}

// forget removes the pod as a node does in the end.
func (m *machine) forget(t *testing.T) {
	t.Helper()
	if err := api.Delete(t.Context(), m.pod, client.GracePeriodSeconds(0)); err != nil && !store.IsAbsent(err) {
		t.Fatal(err)
	}
}

func evict(t *testing.T, pod *corev1.Pod) error {
	t.Helper()
	return api.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace}})
}

func orders(t *testing.T, vm string) (all []v1alpha1.VMOperation) {
	t.Helper()
	list := &v1alpha1.VMOperationList{}
	if err := api.List(t.Context(), list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	for _, op := range list.Items {
		if op.Spec.VMRef.Name == vm {
			all = append(all, op)
		}
	}
	return all
}

// kubectl's own drain waits while a VM moves live: one order is made, and no budget is taken, also if there is one.
func TestDrainMovesLive(t *testing.T) {
	serve(t)
	m := running(t, "live", v1alpha1.EvictionLive)
	m.allow(t, 1)
	clients, err := kubernetes.NewForConfig(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	helper := &drain.Helper{Ctx: t.Context(), Client: clients, GracePeriodSeconds: -1, Timeout: time.Minute,
		Out: io.Discard, ErrOut: io.Discard, EvictErrorRetryDelay: 50 * time.Millisecond}
	list, errs := helper.GetPodsForDeletion("a")
	if len(errs) > 0 || len(list.Pods()) != 1 {
		t.Fatalf("drain finds %v: %v", list, errs)
	}
	drained := make(chan error, 1)
	go func() { drained <- helper.DeleteOrEvictPods(list.Pods()) }()
	apitest.Eventually(t, "a move is ordered", func() (bool, error) { return len(orders(t, "live")) > 0, nil })
	for range 20 {
		if err := evict(t, m.pod); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "VMOperation ") {
			t.Fatalf("an eviction while it moves: %v", err)
		}
	}
	if all := orders(t, "live"); len(all) != 1 || all[0].Spec.Kind != v1alpha1.KindMigrate {
		t.Errorf("orders %v", all)
	}
	if there := m.reload(t); !there || m.pod.DeletionTimestamp != nil || m.budget.Status.DisruptionsAllowed != 1 ||
		len(m.budget.Status.DisruptedPods) > 0 {
		t.Errorf("pod %v, budget %+v", m.pod.DeletionTimestamp, m.budget.Status)
	}
	select {
	case err := <-drained:
		t.Fatalf("the drain has ended: %v", err)
	default:
	}
	m.forget(t) // the VM runs elsewhere: its old pod has ended, and is vacated
	if err := <-drained; err != nil {
		t.Error(err)
	}
	m.budget.ResourceVersion = ""
	if m.reload(t); m.budget.Status.DisruptionsAllowed != 1 {
		t.Errorf("budget %+v", m.budget.Status)
	}
}

// A VM that stops takes its budget first: without one, nothing of it is touched.
func TestStopTakesItsBudget(t *testing.T) {
	serve(t)
	for _, strategy := range []v1alpha1.EvictionStrategy{v1alpha1.EvictionCold, v1alpha1.EvictionHibernate} {
		m := running(t, strings.ToLower(string(strategy)), strategy)
		for range 3 {
			err := evict(t, m.pod)
			if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
				t.Fatalf("%s, with a budget of 0: %v", strategy, err)
			}
		}
		if m.reload(t); m.pod.DeletionTimestamp != nil || len(orders(t, m.name)) > 0 {
			t.Errorf("%s: with a budget of 0 the pod ends, or there are orders", strategy)
		}
		m.allow(t, 1)
		if err := evict(t, m.pod); err != nil {
			t.Fatalf("%s, with a budget of 1: %v", strategy, err)
		}
		m.reload(t)
		_, taken := m.budget.Status.DisruptedPods[m.pod.Name]
		if m.pod.DeletionTimestamp == nil || !taken || m.budget.Status.DisruptionsAllowed != 0 {
			t.Errorf("%s: pod %v, budget %+v", strategy, m.pod.DeletionTimestamp, m.budget.Status)
		}
		m.forget(t)
	}
}

// What a webhook that is down lets through still meets the budget.
func TestBudgetHoldsWithoutTheWebhook(t *testing.T) {
	hook := serve(t)
	m := running(t, "down", v1alpha1.EvictionLive)
	hook.Close()
	if err := evict(t, m.pod); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("evicted: %v", err)
	}
	if m.reload(t); m.pod.DeletionTimestamp != nil {
		t.Error("the pod ends")
	}
	m.forget(t)
}

// A dry run of a drain orders nothing.
func TestDryRunOrdersNothing(t *testing.T) {
	serve(t)
	m := running(t, "dry", v1alpha1.EvictionLive)
	err := api.SubResource("eviction").Create(t.Context(), m.pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{
		Name: m.pod.Name, Namespace: "default"}}, client.DryRunAll)
	if !apierrors.IsTooManyRequests(err) || len(orders(t, "dry")) > 0 {
		t.Errorf("%v, orders %v", err, orders(t, "dry"))
	}
	m.forget(t)
}

// Others' pods are evicted as ever.
func TestOthersAreEvicted(t *testing.T) {
	serve(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	create(t, pod)
	if err := evict(t, pod); err != nil {
		t.Error(err)
	}
}

// An order of another VM may have the name that the next move of an eviction would have. That move gets another name.
func TestNameOfAnEvictionIsTaken(t *testing.T) {
	serve(t)
	m := running(t, "named", v1alpha1.EvictionLive)
	create(t, &v1alpha1.VMOperation{ObjectMeta: metav1.ObjectMeta{Name: "named-evict-g1-0", Namespace: "default"},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: "other"}, Kind: v1alpha1.KindHibernate}})
	for range 2 {
		if err := evict(t, m.pod); !apierrors.IsTooManyRequests(err) {
			t.Errorf("evicted: %v", err)
		}
	}
	if all := orders(t, "named"); len(all) != 1 {
		t.Errorf("%d moves are ordered: %v", len(all), all)
	}
}
