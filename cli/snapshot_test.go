package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

func TestHibernateLimits(t *testing.T) {
	for _, tt := range []struct {
		concurrency uint32
		bandwidth   string
		want        uint64
		ok          bool
	}{{0, "", 0, true}, {64, "20MiB", 20 << 20, true}, {65, "", 0, false}, {1, "64KiB", 64 << 10, true},
		{1, "63KiB", 0, false}, {1, "fast", 0, false}} {
		p := pushFlags{concurrency: tt.concurrency, bandwidth: tt.bandwidth}
		_, bandwidth, _, err := p.read(&cobra.Command{})
		if (err == nil) != tt.ok || err != nil && !errdefs.IsInvalidArgument(err) || bandwidth != tt.want {
			t.Errorf("%+v: %v, %d", tt, err, bandwidth)
		}
	}
}

// Who looks at the list learns why nothing is known of a VM, and what to do about
// one that is lost. An operation's coming and going is no news.
func TestNotesOfTheList(t *testing.T) {
	for status, said := range map[string]bool{"lost": true, "unknown": true, "hibernating": false, "running": false} {
		var out bytes.Buffer
		sayNote(&out, &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Status: status,
			Note: "godwit rm --force default/web"})
		if got := out.String(); (got != "") != said || said &&
			!strings.Contains(got, "default/web is "+status+": godwit rm --force") {
			t.Errorf("%s: %q", status, got)
		}
	}
}

// Pending deletions show where people look.
func TestCleanupPendingShows(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	if row := vmRow(&nodev1.VMInfo{Vm: vm, Status: "running", CleanupPending: 2}); row[1] != "running, cleanup pending "+
		"(2)" {
		t.Errorf("ps: %q", row)
	}
	for use, s := range map[string]*nodev1.SnapshotInfo{
		"cleanup pending": {Vm: vm, Owed: true, Spent: true}, "owner": {Vm: vm, Owner: true, Use: "it owns the VM"},
		"in use": {Vm: vm, Spent: true, Use: "the VM runs from it"}, "spent": {Vm: vm, Spent: true}, "-": {Vm: vm},
		"checkpoint": {Vm: vm, Checkpoint: true}, "pinned": {Vm: vm, Checkpoint: true, Manual: true, Pinned: true},
		"checkpoint by hand": {Vm: vm, Checkpoint: true, Manual: true},
	} {
		if row := snapshotRow(s); row[len(row)-1] != use {
			t.Errorf("snapshot ls: %q, want %s", row, use)
		}
	}
}

// How a VM came to its RAM shows, and how far that is while it goes on.
func TestRestoreShows(t *testing.T) {
	for want, vm := range map[string]*nodev1.VMInfo{
		"running":                  {},
		"running, restored: clone": {RestoreMode: "clone"},
		"running, restored: eager (auto: 90 MiB of RAM, fewer than 256)": {RestoreMode: "eager",
			RestoreReason: "auto: 90 MiB of RAM, fewer than 256"},
		"running, restore: lazy, 1 of 512 MiB": {Restore: "lazy, 1 of 512 MiB",
			RestoreMode: "lazy", RestoreReason: "auto: 300 MiB of RAM"},
		"running, restored: eager (" + strings.Repeat("why ", 15) + "...)": {RestoreMode: "eager",
			RestoreReason: strings.Repeat("why\n", 20)},
	} {
		vm.Status = "running"
		if row := vmRow(vm); row[1] != want {
			t.Errorf("ps: %q, want %q", row[1], want)
		}
	}
	var out bytes.Buffer
	if err := printJSON(&out, &nodev1.VMInfo{RestoreMode: "eager", RestoreReason: "auto: because"}); err != nil {
		t.Fatal(err)
	}
	var said struct {
		Restore string
		Mode    string `json:"restore_mode"`
		Reason  string `json:"restore_reason"`
	}
	if err := json.Unmarshal(out.Bytes(), &said); err != nil || said.Restore != "" || said.Mode != "eager" ||
		said.Reason != "auto: because" {
		t.Errorf("ps -o json: %s, %v", &out, err)
	}
}

func TestPrintPruned(t *testing.T) {
	resp := &nodev1.PruneResponse{Warning: "the store is away", Pruned: []*nodev1.Pruned{
		{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Digest: "sha256:1", Bytes: 1 << 20, Why: "old"},
		{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Digest: "sha256:2", Why: "older", Error: "403"},
	}}
	for dry, want := range map[bool]string{true: "would be deleted", false: "  deleted"} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		err := printPruned(cmd, &options{output: "text"}, resp, dry)
		if !errdefs.IsUnavailable(err) || !strings.Contains(out.String(), want) ||
			!strings.Contains(out.String(), "stays: 403") {
			t.Errorf("dry %v: %v\n%s", dry, err, out.String())
		}
	}
	var out bytes.Buffer
	err := printDiff(&out,
		&nodev1.DiffResponse{Spaces: []*nodev1.SpaceDiff{{Name: "ram0", Same: 5, Changed: 100, Added: 156, Removed: 3}}})
	if err != nil || !strings.Contains(out.String(), "1.0MiB") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// The tree shows when, why, how much and where, what stays, and a line that was left; foreign text moves no cursor.
func TestHistory(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	at := func(d time.Duration) int64 { return now.Add(-d).UnixNano() }
	all := []*nodev1.SnapshotInfo{
		{Vm: vm, Digest: digest("a"), CreatedUnixNano: at(72 * time.Hour), Bytes: 90 << 20, NewBytes: 90 << 20, Node: "a"},
		{Vm: vm, Digest: digest("b"), Parent: digest("a"), CreatedUnixNano: at(5 * time.Hour), Checkpoint: true,
			Bytes: 91 << 20, NewBytes: 1 << 20, Node: "a"},
		{Vm: vm, Digest: digest("c"), Parent: digest("a"), CreatedUnixNano: at(3 * time.Minute), Checkpoint: true,
			Manual: true, Pinned: true, Name: "before-upgrade", Bytes: 92 << 20, NewBytes: 2 << 20, Node: "b\x1b[2J",
			Base: true},
	}
	var out bytes.Buffer
	if err := printTree(&out, all, now); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for i, want := range [][]string{{"SNAPSHOT", "NAME", "AGE", "WHY", "SIZE", "NEW", "NODE", "STATE"},
		{"* aaaaaaaaaaaa ", "3 d", "sleep", "90.0MiB", "a"}, {"| * bbbbbbbbbbbb ", "5 h", "checkpoint ", "1.0MiB"},
		{"* cccccccccccc ", "before-upgrade", "3 min", "checkpoint by hand", "the VM has gone on from it, pinned"}} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d has no %q: %s", i, w, lines[i])
			}
		}
		if len(lines[i]) > 130 || strings.ContainsRune(lines[i], '\x1b') {
			t.Errorf("line %d: %q", i, lines[i])
		}
	}
}
