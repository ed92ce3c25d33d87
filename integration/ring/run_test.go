package ring

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// play runs one case whose program is a script, and answers result, output and what was
// kept.
func play(t *testing.T, c Case, script string) (Result, string, []string) {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"bin/ring", c.Package()} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "ring", c.Binary()), []byte("#!/bin/sh\n"+script),
		0o755); err != nil {
		t.Fatal(err)
	}
	var out, results, kept bytes.Buffer
	r := Runner{Root: root, Out: &out, Results: &results, Kept: NewKept(&kept), Bound: time.Minute, Work: t.TempDir()}
	err := r.Run(t.Context(), []Case{c})
	got, rerr := ReadResults(&results)
	if rerr != nil || len(got) != 1 {
		t.Fatalf("results %v, %v", got, rerr)
	}
	if (err != nil) != (got[0].Why != "") {
		t.Errorf("run: %v, result %+v", err, got[0])
	}
	if left, _ := os.ReadDir(r.Work); len(left) > 0 {
		t.Errorf("left in the work directory: %v", left)
	}
	var names []string
	for archive := tar.NewReader(&kept); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	return got[0], out.String(), names
}

func TestRunner(t *testing.T) {
	ctr := Case{Name: "ctr", VMM: "qemu", Program: "ctr", Tests: "^TestRun$"}
	less := ctr
	less.Skips = []Skip{{Test: "TestRun/slow one", Why: "takes an hour"}}
	demo := Case{Name: "demo", VMM: "cloud-hypervisor", Program: "demo", Tests: "-"}
	for name, tt := range map[string]struct {
		c      Case
		script string
		want   Result // without seconds
		why    string
	}{
		"passes": {ctr, `printf -- '--- PASS: TestRun (1.2s)\n` +
			`    --- PASS: TestRun/a (0.1s)\n    --- PASS: TestRun/b (0.1s)\nPASS\n'`, Result{Passed: 2}, ""},
		"fails": {ctr, `echo log >"$GODWIT_ARTEFACTS/shim.log"; ` +
			`printf -- '--- FAIL: TestRun (1s)\n    --- FAIL: TestRun/a (0s)\n    --- PASS: TestRun/b (0s)\n'; exit 1`,
			Result{Passed: 1, Failed: 1}, "exit status 1"},
		"fails as a whole": {ctr, `printf -- '--- FAIL: TestRun (1s)\n    --- PASS: TestRun/b (0s)\n'; exit 1`,
			Result{Passed: 1, Failed: 1}, "exit status 1"},
		"panics": {ctr, `printf -- '--- PASS: TestRun (1s)\npanic: oh\n'; exit 2`, Result{Passed: 1, Failed: 1},
			"exit status 2"},
		"skips in silence": {ctr, `printf -- '--- PASS: TestRun (1s)\n--- SKIP: TestTask (0s)\n'`,
			Result{Passed: 1, Failed: 1}, "TestTask"},
		"matches nothing":      {ctr, `echo 'testing: warning: no tests to run'`, Result{Failed: 1}, "nothing passed"},
		"left out by the list": {less, `echo "$@"; echo '--- PASS: TestRun (1s)'`, Result{Passed: 1, Skipped: 1}, ""},
		"wants KVM": {ctr, `[ "$GODWIT_ACCEL $GODWIT_VMM" = "kvm qemu" ] && echo '--- PASS: TestRun (1s)'`,
			Result{Passed: 1}, ""},
		"demo":                 {demo, `[ "$GODWIT_VMM" = cloud-hypervisor ] && echo "$@"`, Result{Passed: 1}, ""},
		"demo that is not run": {demo, `exit 2`, Result{Failed: 1}, "exit status 2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, out, kept := play(t, tt.c, tt.script)
			if !strings.Contains(got.Why, tt.why) || (tt.why == "") != (got.Why == "") {
				t.Errorf("why: %q, want %q", got.Why, tt.why)
			}
			if len(kept) > 0 != (tt.why != "") {
				t.Errorf("kept: %v", kept)
			}
			tt.want.Case, got.Seconds, got.Why = tt.c.ID(), 0, ""
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%s\n%s", d, out)
			}
			if name == "fails" && !slices.Contains(kept, "ctr-qemu/shim.log") || name == "left out by the list" &&
				!strings.Contains(out, "-test.skip=^TestRun$/^slow one$") {
				t.Errorf("kept %v, said %s", kept, out)
			}
		})
	}
}

// A program that does not end is killed with what it started, and has failed.
func TestRunnerBound(t *testing.T) {
	root := t.TempDir()
	c := Case{Name: "demo", VMM: "qemu", Program: "demo", Tests: "-"}
	for path, text := range map[string]string{"bin/ring/demo": "#!/bin/sh\nsleep 1000 & echo $! >pid; wait\n",
		c.Package() + "/x": ""} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var text []byte
	for bound := 200 * time.Millisecond; len(text) == 0; bound *= 2 { // until it has started something
		var results bytes.Buffer
		r := Runner{Root: root, Out: io.Discard, Results: &results, Bound: bound - time.Minute, Work: t.TempDir()}
		if err := r.Run(t.Context(), []Case{c}); err == nil || !strings.Contains(err.Error(), "no end after") {
			t.Fatalf("run: %v", err)
		}
		var err error
		if text, err = os.ReadFile(filepath.Join(root, c.Package(), "pid")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it runs still: %s", stat)
		}
	}
}

// What a ground that fell asleep has told counts, and a case without a result is a
// failure by its name.
func TestJudge(t *testing.T) {
	got, err := ReadResults(strings.NewReader(`{"case":"a/qemu","passed":3,"seconds":1}
{"case":"b/qemu","passed":1,"failed":1,"skipped":1,"why":"exit status 1"}
{"case":"c/qemu","pas`))
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	plan := func(names ...string) (cases []Case) {
		for _, n := range names {
			cases = append(cases, Case{Name: n, VMM: "qemu"})
		}
		return cases
	}
	r, err := Judge(plan("a"), got)
	if err != nil || r.Passed != 3 || r.Failed != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = Judge(plan("a", "b", "c"), got)
	if r.Passed != 4 || r.Failed != 2 || r.Skipped != 1 || len(r.Cases) != 3 {
		t.Errorf("%+v", r)
	}
	if err == nil || !strings.Contains(err.Error(), "b/qemu: exit status 1") ||
		!strings.Contains(err.Error(), "c/qemu: it has no result") {
		t.Errorf("verdict %v", err)
	}
	if _, err := Judge(nil, nil); err == nil {
		t.Error("nothing was planned, and that is well")
	}
}
