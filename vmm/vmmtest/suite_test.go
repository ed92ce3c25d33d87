package vmmtest

import (
	"os"
	"testing"
	"time"
)

func fakeEnv(t *testing.T, wrong string) Env {
	t.Helper()
	dir, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ns := "net"
	if wrong == "another namespace" {
		ns = "mnt"
	}
	return Env{
		Driver: &fakeDriver{wrong: wrong}, Memory: 2 << 20, VCPUs: 1, Dir: dir, HotSlot: fakeHotSlot,
		NetNS: func() (*os.File, error) { return os.Open("/proc/self/ns/" + ns) },
		Tap:   func(*os.File) (*os.File, error) { return os.Open(os.DevNull) },
		Still: 150 * time.Millisecond, Limit: time.Minute, // it says something each millisecond
	}
}

func TestFakePasses(t *testing.T) { Run(t, fakeEnv(t, "")) }

// wrongAnswers are what each clause is there for.
var wrongAnswers = map[string][]string{
	"start is inert until resume":              {"start runs"},
	"a failed start leaves nothing":            {"failed start leaves sockets", "failed start passes"},
	"pause stops the guest, resume goes on":    {"pause does nothing"},
	"pause and resume are idempotent":          {"pause twice fails", "resume twice fails"},
	"save needs a paused VM":                   {"save while running"},
	"state is without RAM, the source resumes": {"RAM in the state", "resume after save does nothing"},
	"state is loaded by an incoming VM only":   {"load anywhere", "incoming resumes"},
	"what is no state is refused":              {"garbage loads"},
	"state and RAM go on elsewhere": {"load resumes", "load boots fresh", "disk is not ours",
		"another namespace"},
	"kill is idempotent and leaves nothing": {"kill leaves sockets", "kill twice fails",
		"resume of the dead passes"},
	"power-off is a clean exit":                    {"power-off is not clean", "no event of powered-off"},
	"reset ends the process":                       {"reset boots again", "no event of reset"},
	"panic ends the process":                       {"panic is clean", "no event of panicked"},
	"NIC is removed and added":                     {"remove is not waited for", "everything is ejected"},
	"NIC is added after a restore":                 {"add is lost after a restore"},
	"unknown NIC is not found":                     {"unknown NIC passes"},
	"disk is plugged in and ejected":               {"disk is not removed", "disk of before is read"},
	"a disk that was plugged in goes on elsewhere": {"disk is lost in a restore", "disk stays after a restore"},
	"disk is plugged in after a restore":           {"disk is lost after a restore"},
	"a copy of a template gets its devices":        {"a copy has no NIC", "a copy has no disk"},
	"unknown disk is not found":                    {"unknown disk passes", "any slot takes a disk"},
	"a slot that has a disk takes no other": {"a used slot takes a disk",
		"a refusal takes the disk that is there"},
	"another process adopts the VM":  {"adopt ignores start time", "adopt resets"},
	"a hanging VMM ends in an error": {"hang passes"},
}

// TestEachClauseFails gives each clause a VMM with one wrong answer: a clause that does
// not notice is worth nothing.
func TestEachClauseFails(t *testing.T) {
	for _, c := range Clauses() {
		wrongs := wrongAnswers[c.Name]
		if len(wrongs) == 0 {
			t.Errorf("clause %q: no wrong answer for it", c.Name)
		}
		for _, wrong := range wrongs {
			t.Run(wrong, func(t *testing.T) {
				t.Parallel()
				env := fakeEnv(t, wrong)
				env.Limit = 3 * time.Second
				if err := c.Check(t.Context(), env); err == nil {
					t.Errorf("clause %q does not notice: %s", c.Name, wrong)
				} else {
					t.Log(err)
				}
			})
		}
	}
}
