package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/cli/screen"
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

// A journal that the disk did not take shows in the state, and next to the table with its reason and the remedy.
func TestUnwrittenJournalShows(t *testing.T) {
	vm := &nodev1.VMInfo{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Status: "running", Unwritten: "no space left"}
	if got := stateText(vm); got != "running, journal not written" {
		t.Errorf("ps: %q", got)
	}
	var out bytes.Buffer
	sayNote(&out, vm)
	if got := out.String(); !strings.Contains(got, "default/web") || !strings.Contains(got, "state_dir: no space left") {
		t.Errorf("note: %q", got)
	}
}

// Pending deletions show where people look.
func TestCleanupPendingShows(t *testing.T) {
	vm := &nodev1.VM{Namespace: "default", Id: "web"}
	if got := stateText(&nodev1.VMInfo{Vm: vm, Status: "running", CleanupPending: 2}); got != "running, cleanup pending "+
		"(2)" {
		t.Errorf("ps: %q", got)
	}
	waits := &nodev1.VMInfo{Vm: vm, Status: "waking", Missing: []string{"web", "log"}}
	if got := stateText(waits); got != "waking, waits for web, log" {
		t.Errorf("ps of a pod that waits: %q", got)
	}
	for use, s := range map[string]*nodev1.SnapshotInfo{
		"cleanup pending": {Vm: vm, Owed: true, Spent: true}, "owner": {Vm: vm, Owner: true, Use: "it owns the VM"},
		"in use": {Vm: vm, Spent: true, Use: "the VM runs from it"}, "spent": {Vm: vm, Spent: true}, "-": {Vm: vm},
		"checkpoint": {Vm: vm, Checkpoint: true}, "pinned": {Vm: vm, Checkpoint: true, Manual: true, Pinned: true},
		"checkpoint by hand": {Vm: vm, Checkpoint: true, Manual: true},
	} {
		l := snapshotList(&nodev1.SnapshotsResponse{Snapshots: []*nodev1.SnapshotInfo{s}})
		if got := cell(t, l, "USE"); got != use {
			t.Errorf("snapshot ls: %q, want %s", got, use)
		}
	}
}

// How a VM came to its RAM shows, and how far that is while it goes on.
func TestRestoreShows(t *testing.T) {
	for want, vm := range map[string]*nodev1.VMInfo{
		"running | -":     {},
		"running | clone": {RestoreMode: "clone"},
		"running | eager (auto: 90 MiB of RAM, fewer than 256)": {RestoreMode: "eager",
			RestoreReason: "auto: 90 MiB of RAM, fewer than 256"},
		"running, restore: lazy, 1 of 512 MiB | lazy (auto: 300 MiB of RAM)": {Restore: "lazy, 1 of 512 MiB",
			RestoreMode: "lazy", RestoreReason: "auto: 300 MiB of RAM"},
		"running | eager (" + strings.Repeat("why ", 15) + "...)": {RestoreMode: "eager",
			RestoreReason: strings.Repeat("why\n", 20)},
	} {
		vm.Status = "running"
		l := vmList(&nodev1.VMsResponse{Vms: []*nodev1.VMInfo{vm}}, false, false)
		if got := cell(t, l, "STATE") + " | " + cell(t, l, "RESTORED"); got != want {
			t.Errorf("ps: %q, want %q", got, want)
		}
	}
}

// cell is one of the first row, under a title.
func cell(t *testing.T, l screen.List, title string) string {
	t.Helper()
	for i, c := range l.Columns {
		if c.Title == title {
			return l.Items[0].Row[i]
		}
	}
	t.Fatalf("no column %s", title)
	return ""
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
	diff := diffList(
		&nodev1.DiffResponse{Spaces: []*nodev1.SpaceDiff{{Name: "ram0", Same: 5, Changed: 100, Added: 156, Removed: 3}}})
	err := diff.Print(&out, screen.Text, screen.ListFlags{})
	if err != nil || !strings.Contains(out.String(), "1MiB") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// The tree shows when, why, how much and where, what stays, and a line that was left; foreign text moves no cursor.
func TestHistory(t *testing.T) {
	now := time.Now()
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
	tree := treeOf(&nodev1.SnapshotsResponse{Snapshots: all})
	if err := tree.Print(&out, screen.Wide, screen.ListFlags{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for i, want := range [][]string{{"SNAPSHOT", "NAME", "AGE", "WHY", "SIZE", "NEW", "NODE", "STATE"},
		{"* aaaaaaaaaaaa ", "3d", "sleep", "90MiB", "a"}, {"| * bbbbbbbbbbbb ", "5h", "checkpoint ", "1MiB"},
		{"* cccccccccccc ", "before-upgrade", "3m", "checkpoint by hand", "went on from it, pinned"}} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d has no %q: %s", i, w, lines[i])
			}
		}
		if len(lines[i]) > 230 || strings.ContainsRune(lines[i], '\x1b') {
			t.Errorf("line %d: %q", i, lines[i])
		}
	}
}
