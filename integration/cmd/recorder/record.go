package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// The environment names the file of the calls. FILE.hold has the number of the call that is held
// until that file is gone. FILE.lie says what the shim lies about: "paused", "no pids".
const fileEnv = "GODWIT_RECORDER"

// holdBound ends a hold that the test does not end.
const holdBound = time.Minute

// record writes one line, and holds its call if it is the one.
func record(call, id, more string) error {
	file := os.Getenv(fileEnv)
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, strings.TrimSpace(call+" "+id+" "+more)); err != nil {
		return err
	}
	all, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		return err
	}
	number := fmt.Sprint(bytes.Count(all, []byte("\n")))
	for end := time.Now().Add(holdBound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if held, err := os.ReadFile(file + ".hold"); err != nil || string(held) != number {
			return nil
		}
	}
	return errors.New("held for too long")
}

func lies(about string) bool {
	said, err := os.ReadFile(os.Getenv(fileEnv) + ".lie")
	return err == nil && string(said) == about
}

// intercept records a call between its arrival and its start.
func intercept(ctx context.Context, decode ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, do ttrpc.Method) (any,
	error) {
	return do(ctx, func(request any) error {
		if err := decode(request); err != nil {
			return err
		}
		id, more := "", ""
		if r, ok := request.(interface{ GetID() string }); ok {
			id = r.GetID()
		}
		if r, ok := request.(interface{ GetSandboxID() string }); ok {
			id = r.GetSandboxID()
		}
		if r, ok := request.(interface{ GetExecID() string }); ok && r.GetExecID() != "" {
			more = "exec " + r.GetExecID()
		}
		switch r := request.(type) {
		case *task.KillRequest:
			more = strings.TrimSpace(fmt.Sprintf("%s signal %d all %v", more, r.GetSignal(), r.GetAll()))
		case *task.CreateTaskRequest:
			more = fmt.Sprintf("mounts %d", len(r.GetRootfs()))
			if sandboxed.Load() {
				more += files(r)
			}
		case *sandbox.CreateSandboxRequest:
			more = brings(r)
		}
		return record(path.Base(info.FullMethod), id, more)
	})
}
