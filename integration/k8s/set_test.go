//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

var clubMembers = []string{"log", "web", "db"} // in the order in which they are suspended

// recorded reads a field of a member's record.
func (s site) recorded(member, path string) string {
	s.t.Helper()
	return s.kubectl("get", "vmrecord", "default.club-"+member, "-o", "jsonpath="+path)
}

// gathered waits until all members of the set run on a node, and are ready.
func (s site) gathered(node string) {
	s.t.Helper()
	for _, m := range clubMembers {
		s.kubectl("wait", "gvm/club-"+m, "--for=jsonpath={.status.owner.node}="+node, "--timeout="+limit.String())
		s.wait("condition=Ready", "gvm/club-"+m)
	}
	s.wait("condition=Ready", "gvmset/club")
}

// asleep sorts the members by the time of their snapshots, in seconds: each takes longer than that.
func (s site) asleep() []string {
	s.t.Helper()
	at := map[string]time.Time{}
	for _, m := range clubMembers {
		var err error
		at[m], err = time.Parse(time.RFC3339, s.kubectl("get", "gvm", "club-"+m, "-o",
			"jsonpath={.status.lastSnapshot.time}"))
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return slices.SortedFunc(slices.Values(clubMembers), func(a, b string) int { return at[a].Compare(at[b]) })
}

// TestMachineSet: a set of three VMs is suspended in order. A member that is deleted then comes back as it slept. The
// set is resumed on the other node: its nodeName moves the main VM, and the others follow. Then it moves back live.
func TestMachineSet(t *testing.T) {
	s := openMachines(t)
	s.apply("club")
	s.wait("condition=Ready", "gvmset/club")
	home := s.recorded("db", "{.summary.owner}")
	away := s.Nodes()[0].Name
	if away == home {
		away = s.Nodes()[1].Name
	}
	nonce := rand.Text()
	for _, m := range clubMembers {
		if got, err := s.AskRedis(t.Context(), "club-"+m, "SET", "nonce", nonce+m); err != nil || got != "OK" {
			t.Fatalf("redis of %s says %q: %v", m, got, err)
		}
	}
	s.kubectl("patch", "gvmset", "club", "--type=merge", "-p", `{"spec": {"suspend": true}}`)
	for _, m := range clubMembers {
		s.wait("condition=Hibernated", "gvm/club-"+m)
	}
	if err := harness.Poll(t.Context(), limit, s.empty); err != nil {
		t.Error(err)
	}
	if got := s.asleep(); !slices.Equal(got, clubMembers) {
		t.Errorf("they were suspended in the order %v", got)
	}
	was := s.recorded("web", "{.summary.uid} {.summary.owner}")
	s.kubectl("delete", "gvm", "club-web", "--timeout="+limit.String())
	s.eventually("the member that was deleted", has("Hibernated"), "get", "gvm", "club-web", "--ignore-not-found", "-o",
		"jsonpath={.status.phase}")
	if now := s.recorded("web", "{.summary.uid} {.summary.owner}"); now != was {
		t.Errorf("the record of the member that was deleted is %q, was %q", now, was)
	}
	s.kubectl("patch", "gvmset", "club", "--type=merge", "-p",
		fmt.Sprintf(`{"spec": {"suspend": false, "nodeName": %q}}`, away))
	s.gathered(away)
	s.same(nonce, "after the wake")
	s.kubectl("patch", "gvmset", "club", "--type=merge", "-p",
		fmt.Sprintf(`{"spec": {"nodeName": %q, "moveScope": "All"}}`, home))
	s.gathered(home)
	s.same(nonce, "after the move")
}

// same asks the redis of each member.
func (s site) same(nonce, when string) {
	s.t.Helper()
	for _, m := range clubMembers {
		if got, err := s.AskRedis(context.WithoutCancel(s.t.Context()), "club-"+m, "GET", "nonce"); err != nil ||
			got != nonce+m {
			s.t.Errorf("%s redis of %s has %q, not %q: %v", when, m, got, nonce+m, err)
		}
	}
}
