//go:build integration

package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
)

// suiteCases are the end-to-end tests of agent-sandbox that a RuntimeClass can influence, by the suite's program. The
// others need a browser's image, a provisioner of volumes, or look at the objects of its controllers alone.
var suiteCases = map[string][]string{
	"e2e": {"TestSimpleSandbox", "TestSandboxSuspendResumeCycleWithOperatingMode",
		"TestSandboxSuspensionWithTerminatingPod", "TestSandboxPodDeletionKeepsSuspendedFalse",
		"TestSandboxSuspensionBlockedByUnownedPodConflict", "TestSandboxShutdownTime",
		"TestSandboxRetainedExpiryPreservesFinishedCondition"},
	"e2e-extensions": {"TestRuntimeClassLifecycle"},
}

// suitePassed is what go test prints for a test that passed.
var suitePassed = regexp.MustCompile(`(?m)^--- PASS: (\w+) `)

// TestSandboxSuite: the end-to-end tests of agent-sandbox pass with VMs that sleep as its pods. The tests are as they
// are: a policy gives the pods their RuntimeClass and the opt-in.
func TestSandboxSuite(t *testing.T) {
	s := openSandboxes(t)
	s.apply("suite")
	for program, want := range suiteCases {
		cmd := s.wire.Command(t.Context(), filepath.Join(filepath.Dir(s.programs), "agentsandbox", program), "-test.v",
			"-test.timeout", (2 * limit).String(), "-test.run", "^("+strings.Join(want, "|")+")$")
		cmd.Dir = t.TempDir()
		cmd.Env = append(cmd.Environ(), "KUBECONFIG="+s.config("admin"), "ARTIFACTS="+cmd.Dir,
			"SANDBOX_RUNTIME_CLASS=godwit")
		log, err := os.Create(filepath.Join(cmd.Dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		if err := s.wire.Enter(cmd.Start); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		out, rerr := os.ReadFile(log.Name())
		if rerr != nil {
			t.Fatal(rerr)
		}
		var passed []string
		for _, m := range suitePassed.FindAllStringSubmatch(string(out), -1) {
			passed = append(passed, m[1])
		}
		slices.Sort(passed)
		slices.Sort(want)
		if err != nil || !slices.Equal(passed, want) {
			t.Errorf("%s: %v: %q passed, want %q:\n%s", program, err, passed, want, out)
		}
	}
	// Sandboxes that are gone leave no VM, asleep or awake, and no record.
	s.eventually("the end of the records", func(out string) bool { return strings.TrimSpace(out) == "" }, "get",
		"vmrecords", "-o", "name")
	if err := harness.Poll(t.Context(), limit, s.empty); err != nil {
		t.Error(err)
	}
}
