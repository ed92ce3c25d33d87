package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What Go's fuzzer may say, by what becomes of it: the targets of TestFuzzVerdict. "X" is the
// target's name.
var fuzzed = map[string]struct {
	says    string
	code    string
	input   bool // a failing one is written
	finding string
}{
	"passes": {"fuzz: elapsed: 10s, execs: 9\nPASS", "0", false, ""},
	"ended by its time": {"fuzz: elapsed: 10s, execs: 9\n--- FAIL: X (10.01s)\n    context deadline exceeded\nFAIL", "1",
		false, ""},
	"time, while smaller": {"fuzz: elapsed: 10s, execs: 9\n--- FAIL: X (10.01s)\n    context deadline exceeded\nFAIL", "1",
		true, "testdata/fuzz/X/new:"},
	"fails": {"fuzz: elapsed: 1s, execs: 9\n--- FAIL: X (1.01s)\n    --- FAIL: X (0.00s)\n        " +
		"x_test.go:9: bad\nFAIL", "1", true, "x_test.go:9: bad"},
	"fails by a deadline": {"fuzz: elapsed: 1s, execs: 9\n--- FAIL: X (1.01s)\n    --- FAIL: X (0.00s)\n        " +
		"x_test.go:9: context deadline exceeded\nFAIL", "1", false, "x_test.go:9: context"},
	"a seed fails": {"fuzz: elapsed: 0s\nfailure while testing seed corpus entry: X/a\n--- FAIL: X (0.01s)\n    " +
		"bad\nFAIL", "1", false, "testing seed corpus entry"},
	"a worker dies": {"fuzz: elapsed: 3s, execs: 9\n--- FAIL: X (3.01s)\n    fuzzing process hung or terminated " +
		"unexpectedly: exit status 2\nFAIL", "1", true, "hung or terminated"},
	"panics":       {"fuzz: elapsed: 3s, execs: 9\npanic: bad", "2", false, "panic: bad"},
	"hangs":        {"fuzz: elapsed: 3s, execs: 9", "124", false, "it did not end"},
	"is not there": {"testing: warning: no fuzz tests to fuzz\nPASS", "0", false, "it was not fuzzed"},
}

// Ten seconds of each target are part of CI (item 8 of the snapshot engine): a target that
// fails in any way fails them, and only the end that Go's fuzzer takes for a failure
// (golang/go#75804) does not. The fuzzer is a fake here, in both ways to run it.
func TestFuzzVerdict(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "tools", "fuzz.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range fuzzed {
		for _, args := range [][]string{{"10s"}, {"10s", "smoke"}} {
			t.Run(name+" "+args[len(args)-1], func(t *testing.T) {
				dir := t.TempDir()
				fake := "#!/bin/bash\ncase $* in *^FuzzX*) ;; *) printf 'fuzz: elapsed: 10s\\nPASS\\n'; exit 0 ;; esac\n"
				if c.input {
					fake += "mkdir -p testdata/fuzz/FuzzX && echo 'go test fuzz v1' >testdata/fuzz/FuzzX/new\n"
				}
				fake += "cat <<'END'\n" + strings.ReplaceAll(c.says, "X", "FuzzX") + "\nEND\nexit " + c.code + "\n"
				for path, text := range map[string]string{
					"tools/fuzz.sh":               string(script),
					"bin/target":                  fake,
					"p/x_test.go":                 "package p\n\nfunc FuzzX(f *testing.F) {}\nfunc FuzzFine(f *testing.F) {}\n",
					"q/y_test.go":                 "package q\n\nfunc FuzzY(f *testing.F) {}\n",
					"p/testdata/fuzz/FuzzX/first": "go test fuzz v1\n",
					"bin/go": "#!/bin/bash\ncase $1 in test) cp bin/target \"${@: -2:1}\" ;; env) echo " + dir +
						"/cache ;; list) echo m ;; esac\n",
				} {
					path = filepath.Join(dir, path)
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				for _, args := range [][]string{{"init", "-q"}, {"add", "p", "q"}} {
					if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
				cmd := exec.Command("bash", append([]string{filepath.Join(dir, "tools", "fuzz.sh")}, args...)...)
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				want, says := "\nfuzz: 3 targets, no finding\n", "FuzzX: "
				if c.finding != "" {
					want, says = "\nfuzz: FAILED: p/FuzzX\n", "\nfuzz: p FuzzX: "
				}
				if (err != nil) != (c.finding != "") || !strings.HasSuffix(string(out), want) ||
					!strings.Contains(string(out), says) ||
					!strings.Contains(string(out), strings.ReplaceAll(c.finding, "X", "FuzzX")) {
					t.Errorf("%v:\n%s", err, out)
				}
			})
		}
	}
}
