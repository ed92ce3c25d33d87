//go:build integration

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/api/moves"
	"godwit.dev/godwit/integration/harness"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// moveOf is what godwit -o json says of a move.
type moveOf struct {
	Operation struct {
		ID, Phase, Mode, Source, Destination, Digest, Reason string
	}
	Figures struct {
		Downtime float64 `json:"downtimeMs"`
		Copy     float64 `json:"copyMs"`
		Vote     float64 `json:"voteMs"`
		Commit   float64 `json:"commitMs"`
		Run      float64 `json:"runMs"`
	}
}

// heard waits until the controller knows of both nodes.
func heard(t *testing.T, n *harness.Node, names ...string) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, "nodes")
		for _, name := range names {
			if err == nil && !strings.Contains(out, "\n"+name+" ") {
				err = fmt.Errorf("node %s is not listed: %s", name, out)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func migrate(t *testing.T, n *harness.Node, args ...string) moveOf {
	t.Helper()
	var m moveOf
	out := n.Godwit(t, append([]string{"-o", "json", "migrate"}, args...)...)
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return m
}

// byClient moves a VM by the service alone, and hears of each step.
func byClient(t *testing.T, n *harness.Node, order *nodev1.MigrateRequest) {
	t.Helper()
	client := moves.Local(filepath.Join(n.Dir, "run", "godwitd.sock"))
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := client.Migrate(ctx, order); err != nil {
		t.Fatal(err)
	}
	var heard []string
	err := client.Follow(ctx, &nodev1.WatchRequest{Operation: order.GetOperation(), UntilSettled: true},
		func(ev *nodev1.MoveEvent) error {
			heard = append(heard, ev.GetType())
			return nil
		})
	if want := []string{moves.Started, moves.Switching, moves.Committed, moves.Succeeded}; err != nil ||
		!slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v: %v", heard, want, err)
	}
}

func refused(t *testing.T, n *harness.Node, want string, args ...string) {
	t.Helper()
	if out, err := n.RunGodwit(t.Context(), args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("godwit %s: %v, want %q\n%s", strings.Join(args, " "), err, want, out)
	}
}

// endExec kills an exec that has moved; containerd here is told of its end.
func endExec(t *testing.T, n *harness.Node) {
	t.Helper()
	n.Ctr(t, "task", "kill", "--exec-id", "along", "--signal", "9", vm)
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		_, err := n.RunCtr(ctx, "task", "rm", "--exec-id", "along", vm)
		if e := new(harness.RunError); !errors.As(err, &e) || e.Code() != 137 {
			return fmt.Errorf("delete of the exec that was killed: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// misfit has the destination run another VMM than the VM needs, and its network carry smaller packets:
// by the source's word that is found out before anything of the VM is touched, in either mode.
func misfit(t *testing.T, from, to *harness.Node) {
	t.Helper()
	other := map[string]string{"qemu": "cloud-hypervisor", "cloud-hypervisor": "qemu"}[harness.VMM()]
	untouched(t, from, to, "vmm", "node b: the VM wants "+harness.VMM()+", this node runs "+other,
		to.Config, fmt.Sprintf("kind = %q", harness.VMM()), fmt.Sprintf("kind = %q", other))
	untouched(t, from, to, "mtu", `the guest's MTU is 1500, CNI network "godwit" gives 1400`,
		fmt.Sprintf("/proc/%d/root/etc/cni/net.d/10-godwit.conflist", to.PID()), `"isGateway": false,`,
		`"isGateway": false, "mtu": 1400,`)
}

// untouched wants moves to be refused while a file says something else, and the VM to run as before.
func untouched(t *testing.T, from, to *harness.Node, name, want, path, old, wrong string) {
	t.Helper()
	right, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(right), old) {
		t.Fatalf("%s: %v", right, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(right), old, wrong, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	client := moves.Local(socket(from))
	defer client.Close()
	for _, mode := range []string{"cold", "auto"} {
		id := name + "-" + mode
		refused(t, from, want, "migrate", vm, "--to", to.Name, "--mode", mode, "--operation", id)
		status, err := client.Get(t.Context(), &nodev1.StatusRequest{Operation: id})
		if op := status.GetOperation(); err != nil || !status.GetSettled() || op.GetDigest() != "" || op.GetReceipt() != "" {
			t.Errorf("%s: %v, %v", id, status, err)
		}
	}
	if j := journal(from, vm); j.Phase != "OWN" {
		t.Errorf("the VM is %+v", j)
	}
	if err := os.WriteFile(path, right, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A VM moves through the registry to the other node and back, ordered on either of them:
// memory, disk, boot, address and a running exec are the same, no beacon comes twice, and
// either node is as a hibernate would leave it. What cannot be a move is refused before
// the VM notices.
func TestMigrateCold(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 2, Registry: harness.PlainHTTP, Godwitd: true, Images: true})
	a, b := h.Node(0), h.Node(1)
	a.CheckClean(t)
	b.CheckClean(t)
	watch := listen(t, h)
	at := boot(t, a, watch).From
	before := ask(t, h, at)
	heard(t, a, "a", "b")
	a.Ctr(t, "task", "exec", "--detach", "--exec-id", "along", vm, "/bin/busybox", "sleep", "100000")

	refused(t, a, `no node "nowhere"`, "migrate", vm, "--to", "nowhere")
	refused(t, a, "on node a already", "migrate", vm, "--to", "a")
	refused(t, a, "abort-on", "migrate", vm, "--to", "b", "--abort-on", "rain")
	b.Godwit(t, "cordon", "b")
	refused(t, a, "cordoned", "migrate", vm, "--to", "b", "--mode", "cold")
	b.Godwit(t, "uncordon", "b")

	for i, leg := range []struct{ on, from, to *harness.Node }{{b, a, b}, {b, b, a}} {
		mark := fmt.Sprintf("leg %d", i)
		order := &nodev1.MigrateRequest{Vm: &nodev1.VM{Namespace: "default", Id: vm}, To: leg.to.Name, Mode: "cold",
			Operation: fmt.Sprintf("move-%d", i)}
		if i == 1 {
			byClient(t, leg.on, order)
		}
		m := migrate(t, leg.on, vm, "--to", order.GetTo(), "--mode", order.GetMode(), "--operation", order.GetOperation())
		watch.Mark(mark)
		if m.Operation.Phase != "succeeded" || m.Operation.Mode != "cold" || m.Figures.Downtime <= 0 ||
			m.Figures.Run <= 0 {
			t.Fatalf("%s: %+v", mark, m)
		}
		t.Logf("%s: stood still %.0f ms: copy %.0f, vote %.1f, commit %.1f, run %.0f", mark, m.Figures.Downtime,
			m.Figures.Copy, m.Figures.Vote, m.Figures.Commit, m.Figures.Run)
		if sign := after(t, watch, mark); sign.From != at {
			t.Errorf("%s: it is at %s, was at %s", mark, sign.From, at)
		}
		now := ask(t, h, at)
		if now.Nonce != before.Nonce || now.PID != before.PID || now.BootID != before.BootID || !now.FileOK ||
			now.Counter <= before.Counter {
			t.Errorf("%s: the VM is another one: %+v, was %+v", mark, now, before)
		}
		again := migrate(t, a, vm, "--to", leg.to.Name, "--operation", fmt.Sprintf("move-%d", i))
		if again.Operation.Digest != m.Operation.Digest {
			t.Errorf("%s: the same order answers %+v", mark, again)
		}
		if out := leg.to.Ctr(t, "task", "ps", vm); !strings.Contains(out, "along") {
			t.Errorf("%s: the exec is not among %s", mark, out)
		}
		if out := leg.from.Ctr(t, "tasks", "ls"); strings.Contains(out, vm) {
			t.Errorf("%s: the source has a task: %s", mark, out)
		}
		refused(t, leg.from, leg.to.Name, "wake", vm)
		if _, err := leg.from.RunCtr(t.Context(), "task", "start", "-d", vm); err == nil ||
			!strings.Contains(err.Error(), "node "+leg.to.Name+" owns it") {
			t.Errorf("%s: start of what was left behind: %v", mark, err)
		}
	}
	endExec(t, a)
	misfit(t, a, b)
	if doubles, back := watch.Twice(); doubles+back > 0 {
		t.Errorf("seen twice: %d doubled, %d out of order", doubles, back)
	}
	events := a.Godwit(t, "watch", "move-1")
	for _, want := range []string{"MigrationStarted", "Switching", "Committed", "Succeeded"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event %s in %s", want, events)
		}
	}
	// The first event of all is that the first move has started.
	first, later := b.Godwit(t, "watch", "move-0"), b.Godwit(t, "watch", "--after", "1", "move-0")
	if _, rest, _ := strings.Cut(first, "\n"); !strings.HasPrefix(first, "1 ") || later != rest || rest == "" {
		t.Errorf("events %s; after the first %s", first, later)
	}
	a.Ctr(t, "task", "rm", "--force", vm)
	for _, n := range []*harness.Node{a, b} {
		n.Ctr(t, "container", "rm", vm)
	}
	a.Godwit(t, "rm", vm, "--force")
}
