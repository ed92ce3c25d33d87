//go:build integration

package scale

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	nodek8s "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/operator"
	"godwit.dev/godwit/migrate/kubernetes/pods"
	"godwit.dev/godwit/migrate/pki"
)

const (
	controllerName = "operator"
	namespace      = "default"
	// patience is far above what a program needs to start, and bootPatience what a VM of the fleet does.
	patience     = 2 * time.Minute
	bootPatience = 3 * time.Second
	atOnce       = 16
)

// fleet is an operator, and the nodes around it.
type fleet struct {
	t         *testing.T
	dir       string
	api       client.WithWatch
	listen    string // of the operator, for nodes
	metricsAt string
	healthAt  string
	operator  *exec.Cmd
	nodes     map[string]*node
	errors    nodeErrors
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), nodes: map[string]*node{}, listen: apitest.FreeAddress(t),
		metricsAt: apitest.FreeAddress(t), healthAt: apitest.FreeAddress(t)}
	scheme, err := operator.Scheme()
	if err == nil {
		f.api, err = client.NewWithWatch(server.REST(), client.Options{Scheme: scheme})
	}
	if err == nil {
		err = pki.Init(f.path("pki", controllerName), controllerName, []string{"127.0.0.1"})
	}
	if err == nil {
		err = f.api.Create(t.Context(), &nodek8s.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "godwit"},
			Handler: "godwit"})
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) path(of ...string) string { return filepath.Join(append([]string{f.dir}, of...)...) }

// startOperator builds the program and runs it, until the test ends.
func (f *fleet) startOperator() {
	f.t.Helper()
	program := f.path("godwit-operator")
	build := exec.CommandContext(f.t.Context(), "go", "build", "-o", program, "../cmd/godwit-operator")
	if told, err := build.CombinedOutput(); err != nil {
		f.t.Fatalf("build the operator: %v: %s", err, told)
	}
	files := pki.In(f.path("pki", controllerName))
	cfg := fmt.Sprintf("node = %q\nstate_dir = %q\nrun_dir = %q\n[controller]\nlisten = %q\n", controllerName,
		f.path("lib"), f.path("run"), f.listen)
	cfg += fmt.Sprintf("[tls]\nca = %q\ncert = %q\nkey = %q\n", files.CA, files.Cert, files.Key)
	if err := os.WriteFile(f.path("config.toml"), []byte(cfg), 0o600); err != nil {
		f.t.Fatal(err)
	}
	log, err := os.Create(f.path("operator.log"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.operator = exec.Command(program, "--config", f.path("config.toml"), "--kubeconfig", server.Kubeconfig(),
		"--namespace", namespace, "--metrics", f.metricsAt, "--health", f.healthAt)
	f.operator.Stdout, f.operator.Stderr = log, log
	if err := f.operator.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = f.operator.Process.Signal(os.Interrupt)
		_ = f.operator.Wait()
		if told, err := os.ReadFile(log.Name()); f.t.Failed() {
			f.t.Logf("the operator: %v\n%s", err, told[max(0, len(told)-8<<10):])
		}
	})
	f.until("the operator runs", patience, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.healthAt+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", resp.Status)
		}
		return nil
	})
}

func (f *fleet) until(what string, patience time.Duration, so func(context.Context) error) {
	f.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Second) {
		if err = so(f.t.Context()); err == nil {
			return
		}
	}
	f.t.Fatalf("%s: not within %s: %v", what, patience, err)
}

// startNodes joins the nodes, and the scheduler of them all.
func (f *fleet) startNodes(n int) {
	f.t.Helper()
	authority, err := pki.OpenAuthority(f.path("pki", controllerName))
	if err != nil {
		f.t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	f.t.Cleanup(func() { stop(); all.Wait() })
	for i := range n {
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
		if err := f.api.Create(ctx, object); err != nil {
			f.t.Fatal(err)
		}
		made, err := f.join(ctx, authority, nodeName(i))
		if err != nil {
			f.t.Fatal(err)
		}
		f.nodes[made.name] = made
		all.Go(func() { made.run(ctx) })
	}
	all.Go(func() { f.kubelets(ctx) })
}

func (f *fleet) create(n int) {
	f.t.Helper()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error {
			vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: vmName(i), Namespace: namespace}}
			vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "m:1"}}
			return f.api.Create(f.t.Context(), vm)
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// untilReady waits until all VMs are Ready.
func (f *fleet) untilReady(n int) {
	f.t.Helper()
	f.until("all VMs are ready", patience+time.Duration(n)*bootPatience, func(ctx context.Context) error {
		all := &v1alpha1.VirtualMachineList{}
		if err := f.api.List(ctx, all, client.InNamespace(namespace)); err != nil {
			return err
		}
		ready := 0
		for i := range all.Items {
			if status := all.Items[i].Status; status.Phase == v1alpha1.VMRunning && isTrue(status.Conditions, "Ready") {
				ready++
			}
		}
		if ready < n {
			return fmt.Errorf("%d of %d are", ready, n)
		}
		return nil
	})
}

// untilSeen waits until people see the nodes, and all VMs on them.
func (f *fleet) untilSeen(n, vms int) {
	f.t.Helper()
	f.until("all nodes are seen", patience, func(ctx context.Context) error {
		all := &v1alpha1.GodwitNodeList{}
		if err := f.api.List(ctx, all); err != nil {
			return err
		}
		seen, has := 0, 0
		for i := range all.Items {
			has += int(all.Items[i].Status.VMs)
			if isTrue(all.Items[i].Status.Conditions, "Ready") {
				seen++
			}
		}
		if seen < n || has < vms {
			return fmt.Errorf("%d of %d are, with %d VMs of %d", seen, n, has, vms)
		}
		return nil
	})
}

func isTrue(all []metav1.Condition, kind string) bool {
	for _, c := range all {
		if c.Type == kind {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

// vmOf is the name of a pod's VM in the records.
func vmOf(pod *corev1.Pod) string { return pod.Namespace + "." + pod.Labels[pods.LabelVM] }
