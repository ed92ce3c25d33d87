//go:build integration

// Package day tests the verbs of a VM's day on real VMs: what a user of docker types.
package day

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// site is a node with one VM, which is called web.
type site struct {
	*testing.T
	*harness.Node
	dir   string // of the test, on the host and on the node
	execs int
}

func newSite(t *testing.T) *site {
	h := harness.New(t, harness.Options{Images: true, Godwitd: true, Registry: harness.PlainHTTP})
	s := &site{T: t, Node: h.Node(0), dir: t.TempDir()}
	s.Godwit(t, "run", "-d", "--name", "web", images.Busybox, "sh", "-c",
		"i=0; while :; do echo line $i; i=$((i+1)); sleep 1; done")
	t.Cleanup(func() { _, _ = s.RunGodwit(context.Background(), "rm", "-f", "web") })
	return s
}

// answer is how a godwit has ended.
type answer struct {
	out, errs string
	code      int
}

func (s *site) run(stdin string, args ...string) answer {
	s.Helper()
	var out, errs strings.Builder
	cmd := s.Command(s.Context(), "godwit", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := s.Enter(cmd.Start); err != nil {
		s.Fatal(err)
	}
	_ = cmd.Wait()
	return answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func (s *site) ok(args ...string) string {
	s.Helper()
	r := s.run("", args...)
	if r.code != 0 {
		s.Fatalf("godwit %v: %+v", args, r)
	}
	return r.out
}

// fails checks how a command fails.
func (s *site) fails(code int, text string, args ...string) {
	s.Helper()
	if r := s.run("", args...); r.code != code || !strings.Contains(r.errs, text) {
		s.Errorf("godwit %v: %+v; want code %d and %q", args, r, code, text)
	}
}

// sh runs a script in the VM by containerd's own client.
func (s *site) sh(script string) string {
	s.Helper()
	s.execs++
	return s.Ctr(s.T, "task", "exec", "--exec-id", fmt.Sprintf("e%d", s.execs), "web", "sh", "-c", script)
}

// Files and directories go into a running VM and out of it, by docker's rules and as streams. Links that lead out are
// not followed: neither the guest's on the host, nor the host's in the guest.
func TestCopy(t *testing.T) {
	s := newSite(t)
	in, out := filepath.Join(s.dir, "in"), filepath.Join(s.dir, "out")
	for _, dir := range []string{in, out, filepath.Join(in, "sub")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for name, text := range map[string]string{"a": "one\n", "sub/run": "two\n", "big": big} {
		if err := os.WriteFile(filepath.Join(in, name), []byte(text), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(in, "link")); err != nil {
		t.Fatal(err)
	}
	s.ok("cp", in, "web:/srv")
	if got := s.sh("cat /srv/a /srv/sub/run; readlink /srv/link; stat -c %a:%u /srv/a; wc -c </srv/big"); got !=
		"one\ntwo\n/etc/passwd\n750:0\n1048576\n" {
		t.Errorf("in the VM: %q", got)
	}
	s.ok("cp", "web:/srv/.", out)
	if diff, err := exec.Command("diff", "-r", "--no-dereference", in, out).CombinedOutput(); err != nil {
		t.Errorf("there and back: %v: %s", err, diff)
	}
	s.ok("cp", filepath.Join(in, "a"), "web:srv/b")
	s.ok("cp", "default/web:/srv/b", filepath.Join(out, "c"))
	if data, err := os.ReadFile(filepath.Join(out, "c")); err != nil || string(data) != "one\n" {
		t.Errorf("%q, %v", data, err)
	}
	stream := s.ok("cp", "web:/srv/sub", "-")
	if r := s.run(stream, "cp", "-", "we:/tmp"); r.code != 0 || s.sh("cat /tmp/sub/run") != "two\n" {
		t.Errorf("streams: %+v", r)
	}
	t.Run("links", func(t *testing.T) { s.testLinks(t, in, out) })
	t.Run("commit", s.testCommit)
	s.fails(3, "there is no /nowhere in the VM", "cp", "web:/nowhere", out)
	s.fails(3, "there is no "+out+"/x on this host", "cp", out+"/x", "web:/")
	huge := filepath.Join(s.dir, "huge")
	if err := errors.Join(os.WriteFile(huge, nil, 0o600), os.Truncate(huge, 1<<30)); err != nil {
		t.Fatal(err)
	}
	s.fails(8, "no space is left: make room", "cp", huge, "web:/dev/shm/") // of 64 MiB
	s.fails(4, "by a command (cat)", "cp", "web:/proc/cpuinfo", out)
	s.fails(2, "a path is empty", "cp", "web:", out)
}

func (s *site) testLinks(t *testing.T, in, out string) {
	s = s.within(t)
	secret := filepath.Join(s.dir, "secret")
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sh("mkdir -p /evil; ln -s " + s.dir + " /evil/up; ln -s " + secret + " /evil/s; mkfifo /evil/pipe; " +
		"mknod /evil/disk b 253 0; echo x >/evil/ok")
	if r := s.run("", "cp", "web:/evil", out); r.code != 0 || !strings.Contains(r.errs, "skipped") ||
		!strings.Contains(r.errs, "pipe") {
		t.Errorf("links, a pipe and a device: %+v", r)
	}
	// A second copy finds the links of the first one. Where the guest has a directory now, no link is followed.
	s.sh("rm /evil/up /evil/s; mkdir /evil/up; echo bad >/evil/up/secret; echo bad >/evil/s")
	s.fails(4, "take the place of what is no directory", "cp", "web:/evil", out)
	if data, err := os.ReadFile(secret); err != nil || string(data) != "mine" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
	// In the guest, a link leads to the guest's files alone.
	s.sh("ln -s " + s.dir + " /hole; ln -s /../../../../tmp /out")
	s.fails(3, "in the VM", "cp", filepath.Join(in, "a"), "web:/hole/x/y")
	s.ok("cp", filepath.Join(in, "a"), "web:/out/up")
	if got := s.sh("cat /tmp/up"); got != "one\n" {
		t.Errorf("through a link of the guest: %q", got)
	}
}
