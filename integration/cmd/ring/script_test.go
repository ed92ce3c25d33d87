package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"godwit.dev/godwit/integration/ring"
)

// asRing makes this test program ring itself.
const asRing = "RING_TEST_AS_RING"

func TestMain(m *testing.M) {
	if os.Getenv(asRing) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeGo stands for the Go that builds: of ring it makes a script, of all else an empty
// file.
const fakeGo = `#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
case $out in
*/ring) printf '%s\n' "$FAKE_RING" >"$out"; chmod +x "$out" ;;
*) : >"$out" ;;
esac
`

// fakeRing answers for KVM as it is told, and of each case that it runs that it passed,
// or not. The rest is real.
const fakeRing = `#!/bin/sh
echo "$*" >>"$FAKE_SAID"
case $1 in
kvm) [ -n "$FAKE_KVM" ] || { echo 'ring: no module' >&2; exit 1; } ;;
run)
	shift 5
	for id in "$@"; do printf '{"case":"%s","passed":1%s}\n' "$id" "$FAKE_WHY"; done >>"$FAKE_RESULTS"/results
	[ -z "$FAKE_WHY" ] ;;
*) RING_TEST_AS_RING=1 exec "$FAKE_TEST" "$@" ;;
esac
`

// fakeQEMU is a ground that is awake in as many starts as it has cases, and tells of one case in
// each. Then it sleeps, or ends if it has told of all.
const fakeQEMU = `#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	-serial) beat=$end; end=${2#file:}; shift ;;
	-append) cases=${2##*ring.cases=}; shift ;;
	esac
	shift
done
echo "start $cases" >>"$FAKE_SAID"
echo beat >>"$beat"
[ -z "$FAKE_SLEEP" ] || exec sleep 1000
printf '{"case":"%s","passed":1}\r\n' "${cases%%,*}" >>"$end"
case $cases in
*,*) exec sleep 1000 ;;
*) echo "exit 0" >>"$end" ;;
esac
`

// outer are the parts of the ground that a fake QEMU needs none of.
const outer = `
kernel() { :; }
disk() { : >"$work/root.img"; }
`

type ran struct {
	code      int
	out, said string
	report    ring.Report
}

// script runs a copy of tools/kvmhost.sh with everything that it calls faked.
func script(t *testing.T, env ...string) (r ran) {
	t.Helper()
	root, bin := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "tools"), os.DirFS("../../../tools")); err != nil {
		t.Fatal(err)
	}
	qemu := filepath.Join(root, "bin", "tools", "qemu2", "usr", "bin")
	if err := os.MkdirAll(qemu, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(root, "tools", "kvmhost", "outer.sh"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(outer); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for path, text := range map[string]string{
		filepath.Join(bin, "go"):                  fakeGo,
		filepath.Join(bin, "id"):                  "#!/bin/sh\necho 0\n",
		filepath.Join(bin, "cloud-hypervisor"):    "#!/bin/sh\n",
		filepath.Join(bin, "mktemp"):              "#!/bin/sh\nmkdir " + root + "/work && echo " + root + "/work\n",
		filepath.Join(qemu, "qemu-system-x86_64"): fakeQEMU,
		filepath.Join(root, "tools", "qemu2.sh"):  "#!/bin/sh\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(root, "said")
	cases := []string{"demo", "few/qemu"}
	for _, e := range env {
		if names, ok := strings.CutPrefix(e, "FAKE_CASES="); ok {
			cases = strings.Fields(names)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "kvmhost.sh"), cases...)
	cmd.Env = append(os.Environ(),
		append([]string{"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "FAKE_RING=" + fakeRing, "FAKE_TEST=" + self,
			"FAKE_SAID=" + log, "FAKE_RESULTS=" + filepath.Join(root, "work"), "KVMHOST_QUIET=1", "GODWIT_CLOUD_HYPERVISOR="},
			env...)...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r.code, r.out = cmd.ProcessState.ExitCode(), string(out)
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.said = string(said)
	if data, err := os.ReadFile(filepath.Join(root, "out", "kvmhost.json")); err != nil ||
		json.Unmarshal(data, &r.report) != nil {
		t.Errorf("report %s: %v\n%s", data, err, out)
	}
	return r
}

// Where KVM works the cases run on the host, elsewhere in the ground; either way there is
// a report, and one exit code.
func TestWhere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  []string
		code int
		want ring.Report // without cases and seconds
		says string
	}{
		"KVM": {[]string{"FAKE_KVM=yes"}, 0, ring.Report{Where: "host", VMMs: ring.VMMs, Passed: 3},
			"on this host"},
		"KVM, a failure": {[]string{"FAKE_KVM=yes", `FAKE_WHY=,"failed":1,"why":"exit status 1"`}, 1,
			ring.Report{Where: "host", VMMs: ring.VMMs, Passed: 3, Failed: 3}, "demo/qemu: exit status 1"},
		"no Cloud Hypervisor": {[]string{"FAKE_KVM=yes", "GODWIT_CLOUD_HYPERVISOR=/nowhere/ch"}, 0,
			ring.Report{Where: "host", VMMs: []string{"qemu"}, Passed: 2, NotRun: []string{"cloud-hypervisor"}},
			"NOT RUN: Cloud Hypervisor"},
		"no firmware": {[]string{"FAKE_KVM=yes", "FAKE_CASES=demo/qemu firmware", "GODWIT_CLOUDHV_FIRMWARE="}, 0,
			ring.Report{Where: "host", VMMs: []string{"qemu"}, Passed: 2,
				NotRun: []string{"firmware/cloud-hypervisor: GODWIT_CLOUDHV_FIRMWARE names no file"}},
			"NOT RUN: firmware/cloud-hypervisor: GODWIT_CLOUDHV_FIRMWARE"},
		// Each start tells of one case and falls asleep: what was told stays told.
		"a ground that sleeps": {[]string{"KVMHOST_LANES=1"}, 0, ring.Report{Where: "ground", VMMs: ring.VMMs,
			Passed: 3, VoidStarts: 2}, "VOID: the ground fell asleep"},
		"two that sleep": {[]string{"KVMHOST_LANES=2"}, 0, ring.Report{Where: "ground", VMMs: ring.VMMs, Passed: 3,
			VoidStarts: 1}, "boots 2 times"},
		"one that never wakes": {[]string{"KVMHOST_LANES=1", "FAKE_SLEEP=yes"}, 1, ring.Report{Where: "ground",
			VMMs: ring.VMMs, Failed: 3, VoidStarts: 3}, "asleep 3 times"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := script(t, tt.env...)
			if r.code != tt.code || !strings.Contains(r.out, tt.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", r.code, tt.code, tt.says, r.said, r.out)
			}
			if ran := strings.Contains(r.said, "run -results"); ran != (tt.want.Where == "host") {
				t.Errorf("it ran here: %t:\n%s", ran, r.said)
			}
			r.report.Cases, r.report.Seconds, r.report.LeftOut = nil, 0, nil
			if d := cmp.Diff(tt.want, r.report); d != "" {
				t.Error(d)
			}
			if name == "a ground that sleeps" && !strings.Contains(r.said, "start few/qemu,demo/qemu,demo/cloud-hypervisor\n") ||
				name == "a ground that sleeps" && !strings.Contains(r.said, "start demo/cloud-hypervisor\n") {
				t.Errorf("starts:\n%s", r.said)
			}
			if name == "two that sleep" && (!strings.Contains(r.said, "start few/qemu,demo/qemu\n") ||
				!strings.Contains(r.said, "start demo/cloud-hypervisor\n")) {
				t.Errorf("starts of two lanes:\n%s", r.said)
			}
		})
	}
}
