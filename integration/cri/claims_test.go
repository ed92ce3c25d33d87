package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// claim is what the shim relies on: lines that come in this order in a section, and lines that never do.
type claim struct {
	about   string
	release string // of containerd; empty: all
	section string // the begin of its title
	order   []string
	never   []string
}

var claims = []claim{
	{
		about: "a member has no server of its own, and each task has its own end", section: "the life of a pod",
		order: []string{
			"binary start POD", "Create POD", "Start POD", "Create web", "Start web", "Create log", "Start log",
			"Kill web signal 15", "Delete web", "Delete log", "Kill POD signal 9", "Delete POD", "Shutdown POD",
			"binary delete POD",
		},
		never: []string{"binary start web", "binary start log", "Pause", "Resume", "Checkpoint"},
	},
	{
		about: "an exec is killed after its end", section: "the life of a pod",
		order: []string{"Exec web exec", "Start web exec", "Kill web exec signal 9", "Delete web exec"},
	},
	{
		about: "the end of a member ends in the binary's delete, while the shim lives", release: "2.4",
		section: "the life of a pod",
		order:   []string{"Delete web", "Shutdown web", "binary delete web", "Kill POD"},
	},
	{
		about: "the end of a member is its Delete", release: "2.3", section: "the life of a pod",
		order: []string{"Delete web", "Kill POD"},
		never: []string{"Shutdown web", "binary delete web"},
	},
	{
		about:   "containerd finds a running pod again",
		section: `containerd is killed while a pod of runtime recorder runs; the shim then lies: ""`,
		order:   []string{"containerd starts", "State POD", "CRI: sandbox POD is READY", "CRI: container web is RUNNING"},
		never:   []string{"left: a shim"},
	},
	{
		about:   "the owner of a pod that is paused is deleted before its members",
		section: `containerd is killed while a pod of runtime recorder runs; the shim then lies: "paused"`,
		order: []string{"containerd starts", "Kill POD signal 9", "Delete POD", "Shutdown POD",
			"CRI: container web is UNKNOWN", "Kill web", "Delete web"},
	},
	{
		about:   "a member without pids is deleted, its owner is not",
		section: `containerd is killed while a pod of runtime recorder runs; the shim then lies: "no pids"`,
		order:   []string{"containerd starts", "Delete web", "CRI: sandbox POD is READY", "CRI: container web is EXITED"},
	},
	{
		about: "each task of a shim that died is cleaned up by the binary", section: "the shim of a pod is killed",
		order: []string{"CRI: sandbox POD is NOTREADY", "CRI: container"},
		never: []string{"binary start"},
	},
	{
		about:   "members of a shim that runtime_path names are lost",
		section: "containerd is killed while a pod of runtime path runs",
		order:   []string{"containerd starts", "CRI: container web is EXITED", "left: a shim"},
		never:   []string{"Connect web", "Delete web", "Shutdown web"},
	},
	{
		about: "a sandbox that was not started is ended", section: "containerd is killed in call 2, Create POD",
		order: []string{"containerd starts", "Kill POD signal 9", "Delete POD", "CRI: sandbox POD is NOTREADY"},
	},
	{
		about: "a start whose answer nobody heard counts", section: "containerd is killed in call 5, ",
		order: []string{"containerd starts", "CRI: sandbox POD is READY"},
	},
	{
		about:   "a member that was not started is deleted, and may be created again",
		section: "containerd is killed in call 8, Create web",
		order:   []string{"containerd starts", "Kill web signal 9", "Delete web", "CRI: container web is CREATED"},
	},
}

// The recordings in testdata say what the claims say.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/calls-*.txt")
	if err != nil || len(files) != 2 {
		t.Fatalf("recordings %v, %v, want one of each release", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(file), func(t *testing.T) { checkClaims(t, string(text)) })
	}
}

func checkClaims(t *testing.T, text string) {
	t.Helper()
	sections := strings.Split(text, "\n## ")
	for _, c := range claims {
		if !strings.Contains(sections[0], " containerd "+c.release) {
			continue
		}
		found := false
		for _, s := range sections {
			if strings.HasPrefix(s, c.section) {
				found = true
				c.check(t, s)
			}
		}
		if !found {
			t.Errorf("%s: there is no section %q", c.about, c.section)
		}
	}
}

func (c claim) check(t *testing.T, section string) {
	t.Helper()
	order := c.order
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if len(order) > 0 && strings.HasPrefix(line, order[0]) {
			order = order[1:]
		}
		for _, never := range c.never {
			if strings.HasPrefix(line, never) {
				t.Errorf("%s: there is %q", c.about, line)
			}
		}
	}
	if len(order) > 0 {
		t.Errorf("%s: there is no %q in its place:\n%s", c.about, order[0], section)
	}
}
