package soak

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const clockProgram = `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	begun := time.Now()
	fmt.Println("begun")
	fmt.Scanln()
	for range 100 { time.Sleep(10 * time.Millisecond) }
	now := time.Now()
	fmt.Println(now.Unix()-begun.Unix() > 3000, now.Sub(begun) < time.Minute)
	os.Exit(0)
}
`

// A program that is built with the overlay sees its clock jump by what a file says. How much time has passed does not
// change.
func TestClockJumps(t *testing.T) {
	dir := t.TempDir()
	goroot, err := goEnv(t.Context(), "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	r := replacements{}
	if err := r.clock(goroot, dir); err != nil {
		t.Fatal(err)
	}
	if err := r.write(filepath.Join(dir, "overlay.json")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "main.go")
	if err := os.WriteFile(program, []byte(clockProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", filepath.Join(dir, "program"), program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := setClock(dir, "n", 0); err != nil {
		t.Fatal(err)
	}
	said, err := jump(t.Context(), dir)
	if err != nil || said != "true true\n" {
		t.Errorf("it says %q: %v", said, err)
	}
}

// jump runs the program, and makes its clock jump once it has begun.
func jump(ctx context.Context, dir string) (said string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "program"))
	cmd.Env = append(os.Environ(), ClockEnv+"="+dir, "GODWIT_NODE=n")
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	buf := make([]byte, len("begun\n"))
	if _, err := out.Read(buf); err != nil {
		return "", err
	}
	if err := setClock(dir, "n", time.Hour); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(in); err != nil {
		return "", err
	}
	rest := make([]byte, 64)
	n, err := out.Read(rest)
	if err != nil {
		return "", err
	}
	return string(rest[:n]), cmd.Wait()
}

// A change that the sources no longer have a place for is refused, and never built in by halves.
func TestEditNeedsItsPlace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.go")
	if err := os.WriteFile(file, []byte("a b a"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := replacements{}
	for before, want := range map[string]bool{"a": false, "c": false, "b": true} {
		if err := r.edit(dir, file, before, "x"); (err == nil) != want {
			t.Errorf("%q: %v", before, err)
		}
	}
}
