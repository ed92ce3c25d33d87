//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/integration/harness"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

const snapshotOf = `{"apiVersion": "godwit.dev/v1alpha1", "kind": "VMSnapshot", "metadata": {"name": %q},
	"spec": {"source": {"vmRef": {"name": "shop"}}}}`

// order makes a VMSnapshot of the shop, and answers the name of its work order.
func (s site) order(name string) string {
	s.t.Helper()
	if err := s.Apply(s.t.Context(), fmt.Sprintf(snapshotOf, name)); err != nil {
		s.t.Fatal(err)
	}
	s.afterwards("delete", "--ignore-not-found", "--timeout="+limit.String(), "vmsnap", name)
	return "vmsnap-" + s.kubectl("get", "vmsnap", name, "-o", "jsonpath={.metadata.uid}")
}

// captured wants a VMSnapshot to be ready, and answers its digest: the one that its work order has, and that the record
// lists once, by the uid of the VMSnapshot.
func (s site) captured(name, content string) string {
	s.t.Helper()
	s.wait("condition=Ready", "vmsnap/"+name)
	digest := s.kubectl("get", "vmsnap", name, "-o", "jsonpath={.status.digest}")
	if of := s.kubectl("get", "vmsnapcontent", content, "-o", "jsonpath={.status.digest}"); of != digest || digest == "" {
		s.t.Errorf("VMSnapshot %s has digest %q, its work order %q", name, digest, of)
	}
	rec, err := s.record()
	if err != nil {
		s.t.Fatal(err)
	}
	listed := 0
	for _, ref := range rec.GetSnapshots() {
		if ref.GetDigest() == digest {
			listed++
		}
	}
	if listed != 1 {
		s.t.Errorf("the record lists the digest of VMSnapshot %s %d times: %v", name, listed, rec.GetSnapshots())
	}
	return digest
}

// workloadKnows wants the file in the guest by which the workload sees that its snapshot is ready.
func (s site) workloadKnows(name string) {
	s.t.Helper()
	s.wait("condition=WorkloadTold", "vmsnap/"+name)
	uid := s.kubectl("get", "vmsnap", name, "-o", "jsonpath={.metadata.uid}")
	digest := s.kubectl("get", "vmsnap", name, "-o", "jsonpath={.status.digest}")
	want := fmt.Sprintf(`{"snapshot":%q,"uid":%q,"digest":%q}`, name, uid, digest)
	if got := s.kubectl("exec", "shop-g1-a0", "--", "cat", "/run/godwit/snapshots/"+uid); strings.TrimSpace(got) != want {
		s.t.Errorf("the workload reads %q, not %q", got, want)
	}
}

// record reads that of the shop.
func (s site) record() (*nodev1.Record, error) {
	out, err := s.Kubectl(s.t.Context(), "get", "vmrecord", "default.shop", "-o", "jsonpath={.record}")
	if err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(out))
	rec := &nodev1.Record{}
	if err == nil {
		err = proto.Unmarshal(data, rec)
	}
	return rec, err
}

// TestMachineSnapshot: kubectl apply of a VMSnapshot has the node of its VM capture it. Two of them are two snapshots,
// of a VM that runs on. Its workload finds a file of each.
func TestMachineSnapshot(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := rand.Text()
	if got, err := s.AskRedis(t.Context(), "shop", "SET", "nonce", nonce); err != nil || got != "OK" {
		t.Fatalf("redis says %q: %v", got, err)
	}
	node := s.pod("shop-g1-a0").node
	seen := map[string]bool{}
	for _, name := range []string{"first", "second"} {
		content := s.order(name)
		seen[s.captured(name, content)] = true
		s.workloadKnows(name)
		if at := s.kubectl("get", "vmsnapcontent", content, "-o", "jsonpath={.spec.source.nodeName}"); at != node.Name {
			t.Errorf("the work order is for node %q, and the VM is on %s", at, node.Name)
		}
	}
	if len(seen) != 2 {
		t.Errorf("the snapshots are %v", seen)
	}
	if got, err := s.AskRedis(t.Context(), "shop", "GET", "nonce"); err != nil || got != nonce {
		t.Errorf("after the snapshots redis has %q, not %q: %v", got, nonce, err)
	}
	s.kubectl("delete", "--timeout="+limit.String(), "vmsnap", "first")
	if err := harness.Poll(t.Context(), limit, func(context.Context) error {
		rec, err := s.record()
		if err == nil && len(rec.GetSnapshots()) != 1 {
			err = fmt.Errorf("the record lists %v", rec.GetSnapshots())
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// stepOfSnapshot is one that a VMSnapshot goes through.
type stepOfSnapshot struct {
	name    string
	reached func(content string) bool
}

func (s site) stepsOfSnapshots(node string) []stepOfSnapshot {
	says := func(want string, args ...string) bool {
		out, err := s.Kubectl(s.t.Context(), append([]string{"get", "--ignore-not-found"}, args...)...)
		return err == nil && strings.Contains(out, want)
	}
	return []stepOfSnapshot{
		{"ordered", func(content string) bool { return says(content, "vmsnapcontent", content, "-o", "name") }},
		{"claimed", func(content string) bool {
			return says(node, "lease", "-n", system, content, "-o", "jsonpath={.spec.holderIdentity}")
		}},
		{"opened", func(string) bool {
			rec, err := s.record()
			return err == nil && rec.GetOperation() != nil
		}},
		{"told", func(content string) bool {
			return says("sha256:", "vmsnapcontent", content, "-o", "jsonpath={.status.digest}")
		}},
	}
}

// TestMachineSnapshotKilled: godwit-node and the operator are killed at each step of a VMSnapshot. It is ready all
// the same, with one capture.
func TestMachineSnapshotKilled(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	node := s.pod("shop-g1-a0").node
	for name, program := range map[string]string{"agent": agentProgram, "operator": operatorProgram} {
		for _, step := range s.stepsOfSnapshots(node.Name) {
			t.Run(name+" "+step.name, func(t *testing.T) {
				s := site{s.Cluster, t}
				name := name + "-" + step.name
				content := s.order(name)
				begun := time.Now()
				// A step may be over before it is seen: then this is a kill at a later one.
				for time.Since(begun) < limit {
					done, err := s.Kubectl(t.Context(), "get", "vmsnap", name, "-o", "jsonpath={.status.digest}")
					if step.reached(content) || err == nil && done != "" {
						break
					}
				}
				if err := Kill(program, s.Nodes()...); err != nil {
					t.Fatal(err)
				}
				s.captured(name, content)
				t.Logf("ready after %.1f s", time.Since(begun).Seconds())
				s.steady()
			})
		}
	}
	if got, err := s.AskRedis(t.Context(), "shop", "PING"); err != nil || got != "PONG" {
		t.Errorf("after the kills redis says %q: %v", got, err)
	}
}
