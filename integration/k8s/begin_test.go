//go:build integration

package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// TestMachineBeginsFromASnapshot: a VM is refused the snapshot of one that is there. Once that is deleted it goes on
// with the memory of the snapshot, in one VMM. It sleeps, and wakes on the other node. Its VMSnapshot can be deleted
// then, and the registry is rid of it.
func TestMachineBeginsFromASnapshot(t *testing.T) {
	s := openMachines(t)
	s.apply("shop")
	s.wait("condition=Ready", "gvm/shop")
	nonce := rand.Text()
	redis := func(vm, want string, command ...string) {
		t.Helper()
		if got, err := s.AskRedis(t.Context(), vm, command...); err != nil || got != want {
			t.Fatalf("redis of VM %s answers %q to %v, want %q: %v", vm, got, command, want, err)
		}
	}
	redis("shop", "OK", "SET", "nonce", nonce)
	redis("shop", "1", "INCR", "count")
	s.captured("nightly", s.order("nightly"))
	redis("shop", "2", "INCR", "count")
	s.apply("next")
	s.kubectl("wait", `--for=jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=ForkUnsupported`,
		"--timeout="+limit.String(), "gvm/next")
	if pods := s.kubectl("get", "pods", "-l", "godwit.dev/vm=next", "-o", "name"); pods != "" {
		t.Errorf("a VM whose source is there has the pod %s", pods)
	}
	s.kubectl("delete", "--timeout="+limit.String(), "gvm", "shop")
	s.wait("condition=Ready", "gvm/next")
	redis("next", nonce, "GET", "nonce")
	redis("next", "2", "INCR", "count")
	if err := s.have(1); err != nil {
		t.Error(err)
	}
	s.wait("condition=Ready", "vmsnap/nightly")
	home := s.kubectl("get", "gvm", "next", "-o", "jsonpath={.status.owner.node}")
	away := s.Nodes()[0].Name
	if away == home {
		away = s.Nodes()[1].Name
	}
	s.kubectl("patch", "gvm", "next", "--type=merge", "-p", `{"spec": {"operatingMode": "Hibernated"}}`)
	s.wait("condition=Hibernated", "gvm/next")
	s.kubectl("patch", "gvm", "next", "--type=merge", "-p",
		fmt.Sprintf(`{"spec": {"operatingMode": "Running", "nodeName": %q}}`, away))
	s.kubectl("wait", "gvm/next", "--for=jsonpath={.status.owner.node}="+away, "--timeout="+limit.String())
	s.wait("condition=Ready", "gvm/next")
	redis("next", nonce, "GET", "nonce")
	redis("next", "3", "INCR", "count")
	s.kubectl("delete", "--timeout="+limit.String(), "vmsnap", "nightly")
	if err := harness.Poll(t.Context(), limit, func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "--ignore-not-found", "vmrecord", "default.shop", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("%s of the VM that is gone still owes its snapshots", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	redis("next", "4", "INCR", "count")
}
