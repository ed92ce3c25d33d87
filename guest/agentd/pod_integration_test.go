//go:build integration

package agentd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestMain lets this program be a stage, as godwit-init is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && slices.Contains(stage.Args, os.Args[1]) {
		os.Exit(stage.Main(os.Args[1]))
	}
	os.Exit(m.Run())
}

// inGuest runs the test again as process 1 of namespaces of its own: the service reaps every child
// of its process. It reports whether this is the run that counts.
func inGuest(t *testing.T) bool {
	t.Helper()
	const inside = "GODWIT_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("inside: %v\n%s", err, out)
	}
	return false
}

// newGuest is a service with a pod, without disks: each container is an empty directory.
func newGuest(t *testing.T) *Service {
	t.Helper()
	dir := t.TempDir()
	groups := filepath.Join(dir, "cgroup")
	if err := os.Mkdir(groups, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct{ source, target, kind string }{
		{"", "/", ""}, {"proc", "/proc", "proc"}, {"cgroup2", groups, "cgroup2"},
	} {
		var flags uintptr
		if m.kind == "" {
			flags = unix.MS_PRIVATE | unix.MS_REC
		}
		if err := unix.Mount(m.source, m.target, m.kind, flags, ""); err != nil {
			t.Fatalf("mount %s: %v", m.target, err)
		}
	}
	root, err := os.MkdirTemp(groups, "godwit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the host's: nothing of ours stays
		ctx, cancel := context.WithTimeout(context.Background(), endWait)
		defer cancel()
		if err := errors.Join(cgroup(root).end(ctx), cgroup(root).remove(), unix.Unmount(groups, 0)); err != nil {
			t.Error(err)
		}
	})
	run := filepath.Join(dir, "run")
	if err := errors.Join(os.Mkdir(run, 0o755), unix.Mount("tmpfs", run, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(run, unix.MNT_DETACH) })
	s, err := New(Options{
		Dir: run, CgroupRoot: root, Ready: func() error { return nil }, Started: func() {}, Poke: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// left is all that the service has of containers: mounts, directories, cgroups.
func left(t *testing.T, s *Service) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], s.opts.Dir) {
			all = append(all, f[4])
		}
	}
	for _, dir := range []string{s.opts.Dir, s.opts.CgroupRoot} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && !strings.HasPrefix(path, filepath.Join(s.opts.Dir, "pod", "volumes")) {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all = append(all, fmt.Sprint(len(s.containers), len(s.processes), len(s.starting)))
	s.children.mu.Lock()
	defer s.children.mu.Unlock()
	return strings.Join(append(all, fmt.Sprint(len(s.children.runs))), "\n")
}

// Each step of SetupPod and AddContainer is failed once. What is left is what was there before, and
// the call can be repeated. Then the container goes, and leaves what was there before it.
func TestContainerFailsAtEachStep(t *testing.T) {
	if !inGuest(t) {
		return
	}
	s := newGuest(t)
	var reached []string
	failAt := ""
	s.before = func(step string) error {
		reached = append(reached, step)
		if step == failAt {
			return errors.New("failed on purpose")
		}
		return nil
	}
	setup := &agentv1.SetupPodRequest{Hostname: "h"}
	begin := left(t, s)
	for _, failAt = range []string{"pod cgroup", "pod end"} {
		if _, err := s.SetupPod(t.Context(), setup); err == nil {
			t.Errorf("%s did not fail", failAt)
		}
		if now := left(t, s); now != begin {
			t.Errorf("after %s there is\n%s\nand before there was\n%s", failAt, now, begin)
		}
	}
	failAt = ""
	if _, err := s.SetupPod(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddVolume(t.Context(), &agentv1.AddVolumeRequest{Id: "v", Kind: "disk", Mode: 0o700}); err != nil {
		t.Fatal(err)
	}
	add := &agentv1.AddContainerRequest{
		Container: "c1", Setup: &agentv1.SetupRequest{Files: []*agentv1.File{{Path: "/log", Keep: true}}},
		Volumes: []*agentv1.VolumeMount{{Volume: "v", Target: "/v", Path: "sub"}},
	}
	first := &agentv1.AddContainerRequest{Container: "c0", Setup: &agentv1.SetupRequest{}}
	if _, err := s.AddContainer(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemoveContainer(t.Context(), &agentv1.RemoveContainerRequest{Container: "c0"}); err != nil {
		t.Fatal(err)
	}
	before := left(t, s)
	for _, failAt = range []string{"cgroup", "mount", "init", "files", "end"} {
		if _, err := s.AddContainer(t.Context(), add); err == nil {
			t.Errorf("%s did not fail", failAt)
		}
		if now := left(t, s); now != before {
			t.Errorf("after %s there is\n%s\nand before there was\n%s", failAt, now, before)
		}
	}
	failAt = ""
	for range 2 {
		if _, err := s.AddContainer(t.Context(), add); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(reached, "end") || !strings.Contains(left(t, s), "c1") {
		t.Errorf("steps %v, there is %s", reached, left(t, s))
	}
	if _, err := s.RemoveVolume(t.Context(), &agentv1.RemoveVolumeRequest{Id: "v"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("remove of a volume in use: %v", err)
	}
	if _, err := s.RemoveContainer(t.Context(), &agentv1.RemoveContainerRequest{Container: "c1"}); err != nil {
		t.Error(err)
	}
	if now := left(t, s); now != before {
		t.Errorf("after the end there is\n%s\nand before there was\n%s", now, before)
	}
}
