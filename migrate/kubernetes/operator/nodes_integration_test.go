//go:build integration

package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/schema"
)

// People see each node that has said something, and has a Node. At rest nothing is asked and nothing is written, though
// nodes say something else each time. A node that is mute or cordoned says so. One that is gone goes, and the next one
// of its name has an object of its own.
func TestGodwitNodes(t *testing.T) {
	c := newCrowd(t)
	node := c.joins("seen-a")
	c.joins("seen-b")
	if err := c.says("seen-none", saidBy("seen-none")); err != nil {
		t.Fatal(err)
	}
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "seen-other"}})
	count := c.run(nil)
	o := c.becomes("seen-a", "is seen", seen)
	c.becomes("seen-b", "is seen", seen)
	want := v1alpha1.GodwitNodeStatus{Up: true, Address: "seen-a:7641", Version: "v1", CPU: []string{"kvm/host-1"},
		VMMs: []string{"qemu/7.2"}, Digests: []string{digestOf}, RAMBytes: 64 << 30, FreeBytes: 32 << 30}
	got := o.Status.DeepCopy()
	if got.Conditions = nil; fmt.Sprint(*got) != fmt.Sprint(want) || len(o.OwnerReferences) != 1 ||
		o.OwnerReferences[0].UID != node.UID {
		t.Errorf("it is %+v of %v", o.Status, o.OwnerReferences)
	}
	told, err := server.Kubectl(t.Context(), "", "get", "godwitnodes")
	if lines := strings.Split(told, "\n"); err != nil || !slices.Equal(strings.Fields(lines[0]),
		[]string{"NAME", "UP", "CORDONED", "VMS", "FREE", "REASON", "AGE"}) ||
		!slices.Equal(strings.Fields(lines[1])[:6], []string{"seen-a", "true", "false", "0", "34359738368", "Heard"}) {
		t.Errorf("people see %v: %s", err, told)
	}
	c.looks(3) // what it was asked for once is in its cache
	quiet := len(c.asked(count))
	for i := range 20 { // as in an hour
		info := saidBy("seen-a")
		info.FreeBytes -= uint64(i%2) << 31
		if err := c.says("seen-a", info); err != nil {
			t.Fatal(err)
		}
		c.set(func() { c.later += 3 * time.Minute })
		c.looks(1)
	}
	if all := c.asked(count); len(all) > quiet {
		t.Errorf("at rest it has asked %v", all[quiet:])
	}
	for _, req := range count.seen() {
		if strings.Contains(req, "seen-none") || strings.Contains(req, "seen-other") {
			t.Errorf("of what is no node of godwit it has asked %s", req)
		}
	}
	c.set(func() { c.mute["seen-a"], c.vms["seen-b"] = true, 7 })
	c.becomes("seen-a", "is mute", func(o *v1alpha1.GodwitNode) bool {
		return readyBy(o) == string(decide.ReasonNodeMute) && !o.Status.Up && o.Status.Address != ""
	})
	c.becomes("seen-b", "has VMs", func(o *v1alpha1.GodwitNode) bool { return o.Status.VMs == 7 })
	c.set(func() { c.later += time.Hour })
	node.Spec.Unschedulable = true
	if err := api().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "seen-b"}},
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		t.Fatal(err)
	}
	c.becomes("seen-b", "is cordoned", func(o *v1alpha1.GodwitNode) bool {
		return readyBy(o) == string(decide.ReasonNodeCordoned) && o.Status.Cordoned
	})
	c.goes(o, node)
}

// goes has a Node go, come back under its name, and go for good.
func (c *crowd) goes(o *v1alpha1.GodwitNode, node *corev1.Node) {
	c.t.Helper()
	if err := api().Delete(c.t.Context(), node); err != nil {
		c.t.Fatal(err)
	}
	next := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	create(c.t, next)
	c.becomes(node.Name, "is that of the next Node", func(now *v1alpha1.GodwitNode) bool {
		return now.UID != o.UID && len(now.OwnerReferences) == 1 && now.OwnerReferences[0].UID == next.UID && seen(now)
	})
	if err := api().Delete(c.t.Context(), next); err != nil {
		c.t.Fatal(err)
	}
	apitest.Eventually(c.t, "its object is gone", func() (bool, error) {
		err := api().Get(c.t.Context(), client.ObjectKey{Name: node.Name}, &v1alpha1.GodwitNode{})
		return apierrors.IsNotFound(err), err
	})
}

// A node says what it likes. It spoils its own object at most, within bounds, and speaks for no other node.
func TestHostileGodwitNode(t *testing.T) {
	c := newCrowd(t)
	c.joins("honest")
	c.joins("liar")
	long := saidBy("liar")
	long.CpuClasses = slices.Repeat([]string{"x"}, 17)
	if err := c.says("liar", long); !errdefs.IsInvalidArgument(err) {
		t.Errorf("17 classes: %v", err)
	}
	if err := c.says("liar", saidBy("honest")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("the name of another: %v", err)
	}
	lie := saidBy("liar")
	lie.Address, lie.Version = strings.Repeat("a", 2000), strings.Repeat("v", 2000)
	lie.CpuClasses, lie.Vmms = slices.Repeat([]string{"x"}, 16), []string{"a b", strings.Repeat("v", 129), "\u00e9", "ok"}
	lie.RamBytes, lie.FreeBytes, lie.Cordoned, lie.Vms = 1<<64-1, 1<<64-1, true, 99
	if err := c.says("liar", lie); err != nil {
		t.Fatal(err)
	}
	guard, err := schema.New(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	c.run(guard)
	s := c.becomes("liar", "is seen", seen).Status
	if s.Address != "" || s.Version != "" || !slices.Equal(s.CPU, []string{"x"}) ||
		!slices.Equal(s.VMMs, []string{"ok"}) || s.RAMBytes != 1<<63-1 || s.FreeBytes != 1<<63-1 || s.Cordoned || s.VMs != 0 {
		t.Errorf("it is %+v", s)
	}
	s = c.becomes("honest", "is seen", seen).Status
	if s.Address != "honest:7641" || s.VMs != 0 || !s.Up {
		t.Errorf("the other is %+v", s)
	}
}

// A Node goes and comes back between two looks. The object of the first one goes by its uid, and the next one has its
// own.
func TestGodwitNodeOfANextNode(t *testing.T) {
	c := newCrowd(t)
	node := c.joins("next")
	n := c.view(api(), View{Reader: api()})
	round := func() {
		t.Helper()
		if err := n.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round()
	before := c.becomes("next", "is seen", seen)
	if err := api().Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "next"}}
	create(t, again)
	round()
	round()
	now := c.becomes("next", "is seen", seen)
	if now.UID == before.UID || now.OwnerReferences[0].UID != again.UID {
		t.Errorf("it is %+v, and was %+v", now.ObjectMeta, before.ObjectMeta)
	}
}

// lacking answers schemas that lack a field of GodwitNodes.
type lacking struct{ next http.RoundTripper }

func (l lacking) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil || !strings.Contains(req.URL.Path, "/customresourcedefinitions/godwitnodes") {
		return resp, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	data = bytes.ReplaceAll(data, []byte(`"digests":{`), []byte(`"former":{`))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return resp, nil
}

// Under the schemas of another build nothing is written.
func TestGodwitNodesUnderAnotherSchema(t *testing.T) {
	c := newCrowd(t)
	c.joins("outdated")
	config, looked := server.REST(), &requests{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		looked.next = lacking{next}
		return looked
	})
	guard, err := schema.New(config)
	if err != nil {
		t.Fatal(err)
	}
	count := c.run(guard)
	writes := func() []string {
		return slices.DeleteFunc(c.asked(count), func(req string) bool { return strings.HasPrefix(req, http.MethodGet) })
	}
	apitest.Eventually(t, "it looks at the schema, or writes", func() (bool, error) {
		return len(looked.seen()) > 3 || len(writes()) > 0, nil
	})
	if all := writes(); len(all) > 0 {
		t.Errorf("it has written: %v", all)
	}
	if err := guard.Check(t.Context(), ofNodes); err == nil || !strings.Contains(err.Error(), "status.digests") {
		t.Errorf("the schema lacks nothing: %v", err)
	}
}

// blind is a cache that tells of no Node.
type blind struct{ client.Client }

func (b blind) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Node); ok {
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	return b.Client.Get(ctx, key, o, opts...)
}

// That a cache has no Node proves nothing, nor does an error: the object stays.
func TestGodwitNodeStaysWithoutProof(t *testing.T) {
	c := newCrowd(t)
	c.joins("proof")
	n := c.view(api(), View{Reader: api()})
	if err := n.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := c.becomes("proof", "is seen", seen)
	n.Client = blind{api()}
	if err := n.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.round(ended); err == nil {
		t.Error("what could not be read is no error")
	}
	if now := c.becomes("proof", "is there", seen); now.UID != o.UID || now.DeletionTimestamp != nil {
		t.Errorf("it is %+v", now.ObjectMeta)
	}
	n.Current.Reader = blind{api()}
	if err := n.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := api().Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		t.Errorf("what the API server itself says is proof: %v", err)
	}
}
