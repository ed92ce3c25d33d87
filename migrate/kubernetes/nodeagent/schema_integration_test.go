//go:build integration

package nodeagent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/apitest"
	"godwit.dev/godwit/migrate/kubernetes/decide"
	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// looks counts what an agent asks of a path.
type looks struct {
	next http.RoundTripper
	at   string
	n    atomic.Int64
}

func (l *looks) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet && strings.Contains(req.URL.Path, l.at) {
		l.n.Add(1)
	}
	return l.next.RoundTrip(req)
}

func (l *looks) into(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		l.next = next
		return l
	})
}

// more waits until it has asked some more, while something stays so.
func (l *looks) more(t *testing.T, so func() error) {
	t.Helper()
	from := l.n.Load()
	apitest.Eventually(t, "the agent asks for "+l.at, func() (bool, error) {
		if err := so(); err != nil {
			t.Fatal(err)
		}
		now := l.n.Load()
		return now >= from+3, fmt.Errorf("%d times", now-from)
	})
}

// ordered makes a work order for a snapshot of a VM of node a, in a repository that is not the VM's.
func ordered(t *testing.T, snapshot, vm, repository string) *v1alpha1.VMSnapshotContent {
	t.Helper()
	g := newGodwitd(t)
	pod := vmRuns(t, g, vm, true)
	content := &v1alpha1.VMSnapshotContent{Spec: v1alpha1.VMSnapshotContentSpec{Repository: repository,
		SnapshotRef: v1alpha1.NamespacedRef{Namespace: "default", Name: snapshot, UID: snapshot},
		Source: v1alpha1.ContentSource{NodeName: "a", PodRef: v1alpha1.NamespacedRef{Namespace: "default",
			Name: pod.Name, UID: string(pod.UID)}}}}
	content.Name = snapshot
	content.Labels = map[string]string{decide.LabelNode: "a", pods.LabelVM: vm,
		pods.LabelRecordUID: pod.Labels[pods.LabelRecordUID]}
	create(t, content)
	return content
}

func isReady(t *testing.T, name string) (*v1alpha1.VMSnapshotContent, bool) {
	t.Helper()
	c, _ := read(t, name, &v1alpha1.VMSnapshotContent{})
	return c, meta.IsStatusConditionTrue(c.Status.Conditions, decide.CondReady)
}

// Under the schema of an older build, orders have no repository. A snapshot would lie where those of its VM do, and its
// class says another place. None begins, and nothing is written: that would take the repository off the order for good.
// With the schema of this build, the snapshot is taken where the order says.
func TestOlderSchemaOfAnOrder(t *testing.T) {
	startOperator(t)
	content := ordered(t, "older", "older", "reg.example/gold")
	back := server.Downgrade(t, "vmsnapshotcontents", "spec.repository", "", content.Name)
	g := newGodwitd(t)
	schemas := &looks{at: "/customresourcedefinitions/"}
	startAgent(t, g, schemas.into)
	schemas.more(t, func() error {
		if now, _ := read(t, content.Name, content); len(now.Status.Conditions) > 0 || len(g.begun()) > 0 {
			return fmt.Errorf("captures %v, status %+v", g.begun(), now.Status)
		}
		return nil
	})
	back()
	apitest.Eventually(t, "the snapshot is taken", func() (bool, error) {
		now, ready := isReady(t, content.Name)
		if ready && (now.Spec.Repository != "reg.example/gold" ||
			!strings.HasPrefix(now.Status.Repository, "reg.example/gold/")) {
			t.Fatalf("order %+v, status %+v", now.Spec, now.Status)
		}
		return ready, fmt.Errorf("%+v", now.Status)
	})
}

// The schema loses a field while a snapshot is taken. Its end is told by no status that lacks it: such a status is
// final. What others have of the field stays, and with the schema of this build the end is told whole.
func TestOlderSchemaUnderCapture(t *testing.T) {
	startOperator(t)
	first := ordered(t, "under-0", "under-0", "")
	stop := startAgent(t, newGodwitd(t))
	apitest.Eventually(t, "there is one that has all fields", func() (bool, error) {
		_, ready := isReady(t, first.Name)
		return ready, nil
	})
	stop()
	g := newGodwitd(t)
	g.hold = make(chan struct{})
	schemas := &looks{at: "/customresourcedefinitions/"}
	content := ordered(t, "under-1", "under-1", "reg.example/gold")
	startAgent(t, g, schemas.into)
	apitest.Eventually(t, "the capture has begun", func() (bool, error) { return len(g.begun()) == 1, nil })
	back := server.Downgrade(t, "vmsnapshotcontents", "status.receipt", "", first.Name)
	close(g.hold)
	schemas.more(t, func() error {
		if now, ready := isReady(t, content.Name); ready {
			return fmt.Errorf("status %+v", now.Status)
		}
		return nil
	})
	back()
	var now *v1alpha1.VMSnapshotContent
	apitest.Eventually(t, "its end is told", func() (is bool, _ error) {
		now, is = isReady(t, content.Name)
		return is, nil
	})
	if now.Status.Receipt == "" || now.Spec.Repository != "reg.example/gold" ||
		!slices.Equal(g.begun(), []string{"under-1"}) {
		t.Errorf("%+v, %+v, captures %v", now.Spec, now.Status, g.begun())
	}
}
