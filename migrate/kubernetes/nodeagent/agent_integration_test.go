//go:build integration

package nodeagent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A VMSnapshot becomes Ready, and its deletion takes the work order, and has the record owe the snapshot.
func TestSnapshotOfAVM(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	create(t, newSnapshot("life", "life")) // before there is a VM: it waits
	snapshotIs(t, "life", decide.CondReady, decide.ReasonSourceNotFound)
	pod := vmRuns(t, g, "life", true)
	snap := readySnapshot(t, "life")
	if snap.Status.Bytes != 9 || snap.Status.CompletionTime == nil {
		t.Errorf("status %+v", snap.Status)
	}
	apitest.Eventually(t, "the pod is promoted no more", func() (bool, error) {
		pod, _ = read(t, pod.Name, &corev1.Pod{})
		return pod.Labels[decide.LabelEligible] == "", nil
	})
	content, _ := read(t, snap.Status.BoundSnapshotContentName, &v1alpha1.VMSnapshotContent{})
	if content.Status.Digest != snap.Status.Digest || content.Status.Receipt == "" || content.Status.Generation != 1 {
		t.Errorf("content %+v", content.Status)
	}
	if err := api().Delete(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "it is gone", func() (bool, error) {
		_, there := read(t, "life", &v1alpha1.VMSnapshot{})
		return !there, nil
	})
	if _, there := read(t, content.Name, &v1alpha1.VMSnapshotContent{}); there {
		t.Error("its work order is there")
	}
	owed, err := g.records.Owed(t.Context(), &nodev1.OwedRequest{})
	if err != nil || !slices.ContainsFunc(owed.GetOwed(), func(o *nodev1.Owed) bool {
		return o.GetSnapshot().GetDigest() == snap.Status.Digest
	}) {
		t.Errorf("owed %v, %v", owed, err)
	}
}

// faults fails the nth write of objects other than events and claims, before it is done, or loses the answer.
type faults struct {
	next http.RoundTripper
	mu   sync.Mutex
	at   int
	lost bool
	n    int
}

func (f *faults) RoundTrip(req *http.Request) (*http.Response, error) {
	write := req.Method != http.MethodGet && !strings.Contains(req.URL.Path, "/events") &&
		!strings.Contains(req.URL.Path, "/leases/godwit-operator")
	f.mu.Lock()
	if write {
		f.n++
	}
	hit := write && f.n == f.at
	f.mu.Unlock()
	if hit && !f.lost {
		return nil, errFault
	}
	resp, err := f.next.RoundTrip(req)
	if hit && err == nil {
		_ = resp.Body.Close()
		return nil, errFault
	}
	return resp, err
}

func (f *faults) into(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		f.next = next
		return f
	})
}

// Whichever call fails, before or after it was done, of godwitd or of the API server: the snapshot becomes Ready, and
// one capture has begun.
func TestEachStepFails(t *testing.T) {
	calls := newGodwitd(t)
	startOperator(t)
	vmRuns(t, calls, "steps", true)
	once := func(name string, g *godwitd, api *faults) {
		stop := startAgent(t, g, api.into)
		defer stop()
		create(t, newSnapshot(name, "steps"))
		snap := readySnapshot(t, name)
		if begun := g.begun(); len(begun) != 1 || begun[0] != string(snap.UID) {
			t.Errorf("%s: captures %v of %s", name, begun, snap.UID)
		}
	}
	clean := &faults{}
	once("clean", calls, clean)
	for n := 1; n <= min(calls.calls, 4); n++ {
		for _, f := range []fault{refused, answerLost} {
			g := newGodwitd(t)
			g.at, g.fault = n, f
			once(fmt.Sprintf("daemon-%d-%d", n, f), g, &faults{})
		}
	}
	for n := 1; n <= clean.n; n++ {
		for _, lost := range []bool{false, true} {
			once(fmt.Sprintf("api-%d-%t", n, lost), newGodwitd(t), &faults{at: n, lost: lost})
		}
	}
	t.Logf("%d calls of godwitd and %d writes", calls.calls, clean.n)
}

// An agent that is killed at any call, and started again, tells what godwitd has done, and captures nothing twice.
func TestAgentKilled(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	vmRuns(t, g, "killed", true)
	g.hold = make(chan struct{})
	stop := startAgent(t, g)
	create(t, newSnapshot("killed", "killed"))
	apitest.Eventually(t, "the capture has begun", func() (bool, error) { return len(g.begun()) == 1, nil })
	stop()
	close(g.hold) // it is published while no agent runs
	g.ended.Wait()
	snapshotIs(t, "killed", decide.CondReady, decide.ReasonOperation)
	startAgent(t, g)
	readySnapshot(t, "killed")
	if begun := g.begun(); len(begun) != 1 {
		t.Errorf("captures %v", begun)
	}
}

// Orders of one pod come one after another, the oldest first; the order that is made again begins no second capture.
func TestOneCaptureOfAPod(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	pod := vmRuns(t, g, "many", false)
	var uids []string
	for i := range 3 {
		snap := newSnapshot(fmt.Sprint("many-", i), "many")
		create(t, snap)
		uids = append(uids, string(snap.UID))
		snapshotIs(t, snap.Name, decide.CondReady, decide.ReasonPodNotReady) // that is no failure
		time.Sleep(time.Second)                                              // the clock of objects has seconds
	}
	if begun := g.begun(); len(begun) != 0 {
		t.Fatalf("captures %v of a pod that is not Ready", begun)
	}
	becomesReady(t, pod.Name)
	for i := range 3 {
		readySnapshot(t, fmt.Sprint("many-", i))
	}
	if begun := g.begun(); !slices.Equal(begun, uids) || g.most != 1 {
		t.Errorf("captures %v, want %v; %d at once", begun, uids, g.most)
	}
	content := &v1alpha1.VMSnapshotContent{}
	content.Name = decide.OrderName(types.UID(uids[0]))
	was, _ := read(t, content.Name, &v1alpha1.VMSnapshotContent{})
	if err := api().Delete(t.Context(), content); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the order is gone", func() (bool, error) {
		now, there := read(t, content.Name, &v1alpha1.VMSnapshotContent{})
		return !there || now.UID != was.UID, nil
	})
	readySnapshot(t, "many-0")
	if begun := g.begun(); len(begun) != 3 {
		t.Errorf("captures %v", begun)
	}
}

// A claim that is lost calls the capture off, and its holder tells no success.
func TestLostClaim(t *testing.T) {
	g := newGodwitd(t)
	g.hold = make(chan struct{})
	startOperator(t)
	startAgent(t, g)
	vmRuns(t, g, "lost", true)
	snap := newSnapshot("lost", "lost")
	create(t, snap)
	apitest.Eventually(t, "the capture has begun", func() (bool, error) { return len(g.begun()) == 1, nil })
	lease := &coordination.Lease{}
	apitest.Eventually(t, "another one takes the claim", func() (bool, error) {
		key := types.NamespacedName{Namespace: system, Name: decide.ClaimName(snap.UID, "a")}
		if err := api().Get(t.Context(), key, lease); err != nil {
			return false, err
		}
		other := "somebody else"
		lease.Spec.HolderIdentity = &other
		err := api().Update(t.Context(), lease)
		return err == nil, err
	})
	apitest.Eventually(t, "the capture is called off", func() (bool, error) {
		s, err := g.look(t.Context(), string(snap.UID))
		return s.GetOperation().GetCancelled(), err
	})
	close(g.hold)
	got := snapshotIs(t, "lost", decide.CondFailed, decide.ReasonCancelled) // by the next holder
	if meta.IsStatusConditionTrue(got.Status.Conditions, decide.CondReady) || len(g.begun()) != 1 {
		t.Errorf("%+v, captures %v", got.Status, g.begun())
	}
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].Name != decide.OrderName(snap.UID) {
		t.Errorf("the claim is owned by %v", lease.OwnerReferences)
	}
}

// A snapshot that is deleted under its capture ends it, and leaves nothing.
func TestDeletedUnderCapture(t *testing.T) {
	g := newGodwitd(t)
	g.hold = make(chan struct{})
	startOperator(t)
	startAgent(t, g)
	vmRuns(t, g, "gone", true)
	snap := newSnapshot("gone", "gone")
	create(t, snap)
	apitest.Eventually(t, "the capture has begun", func() (bool, error) { return len(g.begun()) == 1, nil })
	if err := api().Delete(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, "the capture is called off", func() (bool, error) {
		s, err := g.look(t.Context(), string(snap.UID))
		return s.GetOperation().GetCancelled(), err
	})
	if _, there := read(t, "gone", &v1alpha1.VMSnapshot{}); !there {
		t.Error("it is gone before its capture has ended")
	}
	close(g.hold)
	apitest.Eventually(t, "it is gone", func() (bool, error) {
		_, there := read(t, "gone", &v1alpha1.VMSnapshot{})
		return !there, nil
	})
}

// What can never be is told in the status, and is final; the next order of a pod goes on.
func TestSourcesThatFail(t *testing.T) {
	g := newGodwitd(t)
	startOperator(t)
	startAgent(t, g)
	pod := vmRuns(t, g, "source", true)
	for name, test := range map[string]struct {
		pod  v1alpha1.PodRef
		want decide.Reason
	}{
		"no-pod":  {v1alpha1.PodRef{Name: "none", UID: "u"}, decide.ReasonSourceNotFound},
		"another": {v1alpha1.PodRef{Name: pod.Name, UID: "u"}, decide.ReasonStaleSource},
	} {
		snap := newSnapshot(name, "")
		snap.Spec.Source = v1alpha1.SnapshotSource{PodRef: &test.pod}
		create(t, snap)
		snapshotIs(t, name, decide.CondFailed, test.want)
		// The node says the same of an order that was made by hand.
		content := &v1alpha1.VMSnapshotContent{Spec: v1alpha1.VMSnapshotContentSpec{
			SnapshotRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "hand", UID: "hand-" + name},
			Source: v1alpha1.ContentSource{NodeName: "a", PodRef: v1alpha1.NamespacedRef{Namespace: "default",
				Name: test.pod.Name, UID: test.pod.UID}}}}
		content.Name, content.Labels = "hand-"+name, map[string]string{decide.LabelNode: "a"}
		create(t, content)
		apitest.Eventually(t, "the node says so", func() (bool, error) {
			content, _ = read(t, content.Name, &v1alpha1.VMSnapshotContent{})
			c := meta.FindStatusCondition(content.Status.Conditions, decide.CondFailed)
			return c != nil && c.Reason == string(test.want), fmt.Errorf("%+v", content.Status)
		})
	}
	taken := newSnapshot("taken", "source")
	create(t, taken)
	readySnapshot(t, "taken")
}

// An order that lies about its node is carried out by none.
func TestOrderOfAnotherNode(t *testing.T) {
	g := newGodwitd(t)
	startAgent(t, g)
	lie := &v1alpha1.VMSnapshotContent{Spec: v1alpha1.VMSnapshotContentSpec{
		SnapshotRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "lie", UID: "lie"},
		Source: v1alpha1.ContentSource{NodeName: "b", PodRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "none",
			UID: "u"}}}}
	lie.Name, lie.Labels = "lie", map[string]string{decide.LabelNode: "a"}
	honest := lie.DeepCopy()
	honest.Name, honest.Spec.Source.NodeName = "honest", "a"
	create(t, lie)
	create(t, honest)
	apitest.Eventually(t, "the honest one is answered", func() (bool, error) {
		o, _ := read(t, "honest", &v1alpha1.VMSnapshotContent{})
		return decide.Final(o), nil
	})
	if o, _ := read(t, "lie", &v1alpha1.VMSnapshotContent{}); len(o.Status.Conditions) != 0 {
		t.Errorf("status %+v", o.Status)
	}
}

// The rights of a node's agent are those that it needs: status, and no spec.
func TestNodeWritesStatusOnly(t *testing.T) {
	node := clientOf(as("godwit-node"))
	content := &v1alpha1.VMSnapshotContent{Spec: v1alpha1.VMSnapshotContentSpec{
		SnapshotRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "r", UID: "r"},
		Source: v1alpha1.ContentSource{NodeName: "b", PodRef: v1alpha1.NamespacedRef{Namespace: "default", Name: "p",
			UID: "u"}}}}
	content.Name = "rights"
	create(t, content)
	for what, err := range map[string]error{
		"create":   node.Create(t.Context(), content.DeepCopy()),
		"update":   node.Update(t.Context(), content.DeepCopy()),
		"delete":   node.Delete(t.Context(), content.DeepCopy()),
		"patch":    node.Patch(t.Context(), content.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{}`))),
		"snapshot": node.Create(t.Context(), newSnapshot("rights", "vm")),
		"record":   node.Get(t.Context(), types.NamespacedName{Name: "r"}, &v1alpha1.VMRecord{}),
		"secret": node.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "s"},
			&corev1.Secret{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	content.Status.Digest = "sha256:x"
	if err := node.Status().Update(t.Context(), content); err != nil {
		t.Error(err)
	}
}

// An order that is refused for want of room is not lost: the VMSnapshot says why, and is taken once there is room.
func TestSnapshotWithoutRoom(t *testing.T) {
	const why = "512 snapshots of VMs of this name stay: delete VMSnapshots"
	g := newGodwitd(t)
	g.refuses = fmt.Errorf("open: %s: %w", why, errdefs.ErrResourceExhausted)
	startOperator(t)
	startAgent(t, g)
	vmRuns(t, g, "full", true)
	create(t, newSnapshot("full", "full"))
	said := snapshotIs(t, "full", decide.CondReady, decide.ReasonRefused)
	c := meta.FindStatusCondition(said.Status.Conditions, decide.CondReady)
	if !strings.Contains(c.Message, why) || meta.IsStatusConditionTrue(said.Status.Conditions, decide.CondFailed) {
		t.Errorf("conditions %+v", said.Status.Conditions)
	}
	tries := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.refusals
	}
	apitest.Eventually(t, "it is tried again, and says so all the time", func() (bool, error) {
		if said, _ = read(t, "full", &v1alpha1.VMSnapshot{}); !strings.Contains(said.Status.Conditions[0].Message, why) {
			t.Fatalf("conditions %+v", said.Status.Conditions)
		}
		return tries() > 1, nil
	})
	g.mu.Lock()
	g.refuses = nil
	g.mu.Unlock()
	readySnapshot(t, "full")
}
