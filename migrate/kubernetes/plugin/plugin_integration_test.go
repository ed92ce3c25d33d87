//go:build integration

package plugin

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

var server *apitest.Server

func TestMain(m *testing.M) { os.Exit(apitest.Main(m, func(s *apitest.Server) { server = s })) }

// site is a namespace with one VM. The test writes what the operator would say of it.
type site struct {
	client.Client
	t  *testing.T
	ns string
	vm *v1alpha1.VirtualMachine
}

func newSite(t *testing.T, edit func(*v1alpha1.VirtualMachineSpec)) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.REST(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Client: c, t: t, ns: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	if _, err := server.Kubectl(t.Context(), "", "create", "namespace", s.ns); err != nil {
		t.Fatal(err)
	}
	s.vm = &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: s.ns}}
	s.vm.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "localhost/godwit/redis"}}
	if edit != nil {
		edit(&s.vm.Spec)
	}
	s.must(c.Create(t.Context(), s.vm))
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// says has the VM be in a phase, as the operator writes it once it has seen the newest change.
func (s *site) says(phase v1alpha1.VMPhase, node, digest string, refused decide.Reason) {
	s.t.Helper()
	s.must(s.Get(s.t.Context(), client.ObjectKeyFromObject(s.vm), s.vm))
	st := &s.vm.Status
	st.ObservedGeneration, st.Phase, st.Owner = s.vm.Generation, phase, v1alpha1.VMOwner{Node: node, Digest: digest}
	st.Conditions = nil
	if refused != "" {
		st.Conditions = []metav1.Condition{{Type: decide.CondProgressing, Status: metav1.ConditionFalse,
			Reason: string(refused), Message: "the reason in words", ObservedGeneration: s.vm.Generation,
			LastTransitionTime: metav1.Now()}}
	}
	s.must(s.Status().Update(s.t.Context(), s.vm))
}

// run runs the plugin in this process.
func (s *site) run(args ...string) (string, error) {
	cmd := Command()
	out := &bytes.Buffer{}
	cmd.SetOut(out)
	cmd.SetErr(out)
	cmd.SetArgs(append([]string{"--kubeconfig", server.Kubeconfig(), "-n", s.ns}, args...))
	err := cmd.ExecuteContext(s.t.Context())
	return out.String(), err
}

func (s *site) orders() []v1alpha1.VMOperation {
	s.t.Helper()
	list := &v1alpha1.VMOperationList{}
	s.must(s.List(s.t.Context(), list, client.InNamespace(s.ns)))
	return list.Items
}

// Each verb writes what it is for: the wish of the VM, or an order that is of this VM and goes with it.
func TestVerbs(t *testing.T) {
	for _, c := range []struct {
		name, digest string // the VM sleeps in it
		node         string // its spec.nodeName
		args         []string
		mode         v1alpha1.OperatingMode
		wish         string // spec.nodeName afterwards
		order        v1alpha1.VMOperationSpec
	}{
		{name: "hibernate", args: []string{"hibernate"}, mode: v1alpha1.ModeHibernated},
		{name: "stop", args: []string{"stop"}, mode: v1alpha1.ModeStopped},
		{name: "start", args: []string{"start"}, digest: "sha256:1", mode: v1alpha1.ModeRunning},
		{name: "wake", args: []string{"wake"}, digest: "sha256:1", mode: v1alpha1.ModeRunning},
		{name: "wake to", args: []string{"wake", "--to", "b"}, digest: "sha256:1", mode: v1alpha1.ModeRunning,
			order: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindWake, NodeName: "b"}},
		{name: "migrate", args: []string{"migrate"}, mode: v1alpha1.ModeRunning,
			order: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindMigrate}},
		{name: "migrate to", args: []string{"migrate", "--to", "b"}, mode: v1alpha1.ModeRunning,
			order: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindMigrate, NodeName: "b"}},
		{name: "migrate bound", args: []string{"migrate", "--to", "b"}, node: "a", mode: v1alpha1.ModeRunning, wish: "b"},
		{name: "checkpoint", args: []string{"checkpoint"}, mode: v1alpha1.ModeRunning,
			order: v1alpha1.VMOperationSpec{Kind: v1alpha1.KindCheckpoint}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, func(spec *v1alpha1.VirtualMachineSpec) { spec.NodeName = c.node })
			if c.digest != "" {
				s.vm.Spec.OperatingMode = v1alpha1.ModeHibernated
				s.must(s.Update(t.Context(), s.vm))
				s.says(v1alpha1.VMHibernated, "", c.digest, "")
			}
			out, err := s.run(append(c.args, "web", "--detach")...)
			if err != nil || !strings.Contains(out, "is ordered") {
				t.Fatalf("output %q, %v", out, err)
			}
			s.must(s.Get(t.Context(), client.ObjectKeyFromObject(s.vm), s.vm))
			if s.vm.Spec.OperatingMode != c.mode || s.vm.Spec.NodeName != c.wish {
				t.Errorf("it should be %s on %q", s.vm.Spec.OperatingMode, s.vm.Spec.NodeName)
			}
			got := s.orders()
			switch {
			case c.order.Kind == "" && len(got) == 0:
			case len(got) != 1 || got[0].Spec.Kind != c.order.Kind || got[0].Spec.NodeName != c.order.NodeName ||
				got[0].Spec.VMRef.UID != string(s.vm.UID) ||
				got[0].OwnerReferences[0].UID != s.vm.UID:
				t.Errorf("orders %+v", got)
			}
		})
	}
}

// What cannot be is refused, with the way out, and nothing is written.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		node, want string
		args       []string
	}{
		"no such VM":    {want: "kubectl godwit ps -A", args: []string{"hibernate", "other"}},
		"no name":       {want: "takes the name of one VirtualMachine", args: []string{"hibernate"}},
		"not asleep":    {want: "not asleep", args: []string{"wake", "web"}},
		"it comes back": {node: "a", want: "name another node by --to", args: []string{"migrate", "web"}},
		"no order":      {want: "kubectl godwit operations web", args: []string{"abort", "web"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, func(spec *v1alpha1.VirtualMachineSpec) { spec.NodeName = c.node })
			s.says(v1alpha1.VMRunning, "a", "", "")
			before := s.vm.ResourceVersion
			if out, err := s.run(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("output %q, error %v, want %q", out, err, c.want)
			}
			s.must(s.Get(t.Context(), client.ObjectKeyFromObject(s.vm), s.vm))
			if s.vm.ResourceVersion != before || len(s.orders()) > 0 {
				t.Error("something was written")
			}
		})
	}
}

// A verb waits for what the operator says after the change, and not for what it said before.
func TestWaits(t *testing.T) {
	for name, c := range map[string]struct {
		then func(*site)
		want string // in the output, or in the error
		fail bool
	}{
		"done": {func(s *site) { s.says(v1alpha1.VMHibernated, "", "sha256:1", "") }, "VM web is Hibernated", false},
		"refused": {func(s *site) { s.says(v1alpha1.VMRunning, "a", "", decide.ReasonEngineMissing) },
			"EngineMissing: the reason in words", true},
		"deleted": {func(s *site) { s.must(s.Delete(context.Background(), s.vm)) }, "was deleted meanwhile", true},
		"made anew": {func(s *site) {
			s.must(s.Delete(context.Background(), s.vm))
			s.vm = &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: s.ns}, Spec: s.vm.Spec}
			s.must(s.Create(context.Background(), s.vm))
		}, "was deleted meanwhile", true},
		"nothing": {func(*site) {}, "the operator has not seen the change yet", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			s.says(v1alpha1.VMHibernated, "", "sha256:0", "") // from before: it counts no more
			s.says(v1alpha1.VMRunning, "a", "", "")
			type result struct {
				out string
				err error
			}
			ended := make(chan result, 1)
			go func() {
				out, err := s.run("hibernate", "web", "--timeout", "6s")
				ended <- result{out, err}
			}()
			apitest.Eventually(t, "the change is written", func() (bool, error) {
				err := s.Get(t.Context(), client.ObjectKeyFromObject(s.vm), s.vm)
				return s.vm.Spec.OperatingMode == v1alpha1.ModeHibernated, err
			})
			c.then(s)
			r := <-ended
			if c.fail != (r.err != nil) || !strings.Contains(r.out, c.want) && (r.err == nil ||
				!strings.Contains(r.err.Error(), c.want)) {
				t.Errorf("output %q, error %v, want %q", r.out, r.err, c.want)
			}
		})
	}
}

// An order that fails is an error with its reason. abort calls off one that is open, once.
func TestOrderFails(t *testing.T) {
	s := newSite(t, nil)
	s.says(v1alpha1.VMRunning, "a", "", "")
	if _, err := s.run("migrate", "web", "--to", "b", "--detach"); err != nil {
		t.Fatal(err)
	}
	if out, err := s.run("abort", "web"); err != nil || !s.orders()[0].Spec.Abort {
		t.Errorf("abort: %q, %v", out, err)
	}
	if _, err := s.run("abort", "web"); err == nil {
		t.Error("called off twice")
	}
	op := s.orders()[0]
	op.Status.Phase, op.Status.Reason = v1alpha1.MigrationFailed, "node b is full\x1b[2J"
	s.must(s.Status().Update(t.Context(), &op))
	if done, err := ended(&op); !done || err == nil || !strings.Contains(err.Error(), "node b is full") {
		t.Errorf("ended: %v, %v", done, err)
	}
	out, err := s.run("operations", "web")
	if err != nil || !strings.Contains(out, "node b is full") || strings.Contains(out, "\x1b") {
		t.Errorf("operations: %q, %v", out, err)
	}
}

// kubectl finds the plugin by its name, and the plugin finds the API server as kubectl does.
func TestKubectlRunsIt(t *testing.T) {
	s := newSite(t, nil)
	s.says(v1alpha1.VMRunning, "node-7", "", "")
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "kubectl-godwit"),
		"../cmd/kubectl-godwit")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	kubectl := exec.CommandContext(t.Context(), server.KubectlProgram(), "godwit", "ps", "-A")
	kubectl.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+server.Kubeconfig())
	out, err := kubectl.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "node-7") {
		t.Errorf("kubectl godwit ps: %v: %s", err, out)
	}
}

// Under the schema of an older build, no verb says that something is ordered which the API server drops.
func TestOlderSchema(t *testing.T) {
	s := newSite(t, nil)
	back := server.Downgrade(t, "virtualmachines", "spec.operatingMode", s.ns, "web")
	out, err := s.run("hibernate", "web", "--detach")
	if err == nil || !strings.Contains(err.Error(), "spec.operatingMode") {
		t.Errorf("output %q, error %v", out, err)
	}
	back()
	if out, err = s.run("hibernate", "web", "--detach"); err != nil {
		t.Errorf("output %q, error %v", out, err)
	}
}
