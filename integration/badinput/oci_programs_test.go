//go:build integration

package badinput

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// programs writes files that are no programs, each in its own way.
func programs(t *testing.T, dir string) {
	t.Helper()
	self, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	arm := bytes.Clone(self)
	binary.LittleEndian.PutUint16(arm[18:], 183) // e_machine: AArch64
	for name, data := range map[string][]byte{
		"text": []byte("just words\n"), "empty": nil, "arm": arm[:4096], "cut": self[:100],
		"script": []byte("#!/bin/sh\necho ran\n"), "orphan": []byte("#!/no/such/interpreter\n"),
		"plain": []byte("#!/bin/sh\n"),
	} {
		mode := os.FileMode(0o755)
		if name == "plain" {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, mode); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that cannot be one fails its Start with the words that users of runc know.
func testPrograms(t *testing.T, b *box, task client.Task, sh func(string) *specs.Process) {
	for _, tt := range []struct{ program, want string }{
		{"nosuch", `exec: "nosuch": executable file not found in $PATH`},
		{"/nosuch", "/nosuch: no such file or directory"},
		{"/programs", `exec: "/programs": is a directory`},
		{"/programs/plain", `exec: "/programs/plain": permission denied`},
		{"/programs/text", "/programs/text: exec format error"},
		{"/programs/empty", "/programs/empty: exec format error"},
		{"/programs/cut", "/programs/cut: exec format error"},
		{"/programs/arm", "/programs/arm: exec format error"},
		{"/programs/orphan", "/programs/orphan: no such file or directory"},
	} {
		p := sh("")
		p.Args = []string{tt.program}
		if _, _, err := b.exec(t, task, "program", p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.program, err, tt.want)
		}
	}
	p := sh("/programs/script")
	if out, code, err := b.exec(t, task, "program", p); out != "ran\n" || code != 0 || err != nil {
		t.Errorf("a program after all these: %q, %d, %v", out, code, err)
	}
}

// What a VM cannot honour is refused at Create, and leaves nothing.
func testSpecRefused(t *testing.T, b *box, dir string) {
	for _, tt := range []struct {
		name string
		opt  oci.SpecOpts
		want string
	}{
		{"seccomp", edit(func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/x"}
		}), "linux.seccomp.listenerPath"},
		{"namespace", oci.WithLinuxNamespace(specs.LinuxNamespace{Type: "dream"}), "linux.namespaces dream"},
		{"hook", edit(func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/h"}}}
		}), "hooks.createContainer"},
		{"rlimit", edit(func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_X"}} }), "RLIMIT_X"},
		{"device", edit(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c"}}
		}), "/dev/kvm"},
		{"mount option", oci.WithMounts(
			[]specs.Mount{{Type: "bind", Source: dir, Destination: "/d", Options: []string{"rbind", "ro", "frobnicate"}}}),
			`"frobnicate"`},
		{"mount type", oci.WithMounts([]specs.Mount{{Type: "9p", Source: "x", Destination: "/d"}}), `"9p"`},
	} {
		if _, err := b.task(t, "refused-"+strings.ReplaceAll(tt.name, " ", "-"), cio.NullIO, tt.opt); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
