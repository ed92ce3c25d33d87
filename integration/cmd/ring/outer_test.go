package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What a ground has worked for its last case is known after its QEMU has ended, which has no ticks any more.
func TestWorkAfterTheEnd(t *testing.T) {
	lane := t.TempDir()
	if err := os.WriteFile(filepath.Join(lane, "exit"), []byte(`{"case":"few/qemu"}`+"\n"+`{"case":"demo/qemu"}`+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	script := `. tools/kvmhost/outer.sh; pid=none; told=1 since=500 worked=1700; tell`
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script)
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "lane="+lane)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(lane, "worked"))
	if err != nil || string(got) != "demo/qemu 12\n" {
		t.Errorf("%q, %v: want 12 s of demo/qemu", got, err)
	}
}
