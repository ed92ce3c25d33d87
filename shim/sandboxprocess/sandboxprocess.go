// Package sandboxprocess keeps a pid and a network namespace alive for a task. The pid that
// containerd shows belongs to a small process that sleeps in the task's namespace. So hooks and
// CNI find /proc/PID/ns/net from Create to the end of the VM.
package sandboxprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/shim/memtrim"
	"godwit.dev/godwit/shim/proc"
)

// Subcommand of the shim's binary that is the sandbox process.
const Subcommand = "holder"

// Namespace says where the sandbox process lives.
type Namespace struct {
	Path string // join this one
	New  bool   // make one; otherwise, without a path, stay in the caller's
}

// Start starts a sandbox process that runs binary, waits until it is where it shall be, and has
// it written down by note. The sandbox process stays only if that succeeds: one that is not
// written down, its starter being killed, ends by itself. Its end need not be waited for.
func Start(ctx context.Context, binary string, ns Namespace, note func(proc.ID) error) error {
	ready, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start sandbox process: %w", err)
	}
	defer ready.Close()
	r, stay, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("start sandbox process: %w", err), w.Close())
	}
	defer stay.Close()
	args := []string{Subcommand}
	if ns.Path != "" {
		args = append(args, ns.Path)
	}
	cmd := exec.Command(binary, args...)
	cmd.Args[0] = os.Args[0] // what ps shows, also where binary is a link of /proc
	cmd.ExtraFiles = []*os.File{w, r}
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if ns.New {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	err = cmd.Start()
	w.Close()
	r.Close()
	if err != nil {
		return fmt.Errorf("start sandbox process: %w", err)
	}
	id, err := proc.Find(cmd.Process.Pid)
	if err == nil {
		err = waitReady(ctx, ready)
	}
	if err == nil {
		err = note(id)
	}
	if err == nil {
		_, err = stay.WriteString("stay")
	}
	var kill error
	if err != nil {
		kill = cmd.Process.Kill() // also one that could not be named
	}
	ended := make(chan struct{})
	go func() { // reaps; ends with the sandbox process
		defer close(ended)
		_ = cmd.Wait()
	}()
	if err == nil {
		return nil
	}
	if kill == nil {
		<-ended
	}
	return errors.Join(fmt.Errorf("start sandbox process in %q: %w", ns.Path, err), kill)
}

func waitReady(ctx context.Context, ready *os.File) error {
	stop := context.AfterFunc(ctx, func() { ready.Close() })
	defer stop()
	answer, err := io.ReadAll(ready)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	if string(answer) != "ok" {
		return fmt.Errorf("sandbox process said %q", answer)
	}
	return nil
}

// Main is the sandbox process. It ends by SIGKILL.
func Main(args []string) error {
	runtime.LockOSThread() // the main thread: /proc/PID/ns/net shows its namespace
	ready, stay := os.NewFile(3, "ready"), os.NewFile(4, "stay")
	if len(args) > 0 {
		if err := join(args[0]); err != nil {
			fmt.Fprint(ready, err)
			return err
		}
	}
	root := os.Geteuid() == 0 // a user's sandbox process shows what that user sees anyway
	if root {
		if err := leaveRoot(); err != nil {
			fmt.Fprint(ready, err)
			return err
		}
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGPIPE)
	if _, err := ready.WriteString("ok"); err != nil {
		return err
	}
	ready.Close()
	if word, err := io.ReadAll(stay); err != nil || len(word) == 0 {
		return fmt.Errorf("the sandbox process was not written down: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	stay.Close()
	// Neither is worth a task if the host refuses it.
	if root {
		_ = execProgram(os.Args)
	}
	_ = memtrim.Trim()
	for {
		if err := unix.Pause(); err != nil && err != unix.EINTR {
			return err
		}
	}
}

func join(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("join network namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("join network namespace %s: %w", path, err)
	}
	return nil
}
