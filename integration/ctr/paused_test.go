//go:build integration

package ctr

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/integration/harness"
)

// An exec may be given up in its Start while the guest stood still, for longer than any call waits for it. It does not
// run after that; for containerd it has ended.
func testGivenUpStart(t *testing.T, s *shim) {
	const name, still = "4321", 12 * time.Second
	process := fmt.Sprintf(`{"args":["sleep",%q],"cwd":"/","env":["PATH=/bin"]}`, name)
	_, err := s.Exec(s.ctx, &taskapi.ExecProcessRequest{ID: s.vm, ExecID: "late",
		Spec: &anypb.Any{Value: []byte(process)}})
	must(t, "exec", err)
	s.signalVMM(t, "STOP")
	begun := time.Now()
	ctx, leave := context.WithTimeout(s.ctx, time.Second)
	defer leave()
	if _, err := s.Start(ctx, &taskapi.StartRequest{ID: s.vm, ExecID: "late"}); err == nil {
		t.Error("a guest that stands still has started an exec")
	}
	// the shim hears of the deadline a little later
	err = harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		r, err := s.State(s.ctx, &taskapi.StateRequest{ID: s.vm, ExecID: "late"})
		if err == nil && (r.GetStatus() != tasktypes.Status_STOPPED || r.GetExitStatus() != 255) {
			err = fmt.Errorf("the exec is %v", r)
		}
		return err
	})
	must(t, "state", err)
	s.forget(t, "late")
	time.Sleep(time.Until(begun.Add(still)))
	s.signalVMM(t, "CONT")
	for i := range 3 { // it may be about to run, or to be killed
		err := harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
			id := fmt.Sprintf("look%d", i)
			s.exec(t, id, "for p in /proc/[0-9]*; do grep -qs "+name+" $p/cmdline && [ ${p#/proc/} != $$ ] && exit 1; done; "+
				"exit 0")
			defer s.forget(t, id)
			if s.ended(t, id) != 0 {
				return fmt.Errorf("sleep %s runs, known to nobody", name)
			}
			return nil
		})
		must(t, "look for the process", err)
		time.Sleep(time.Second)
	}
	if err := s.kill("late", 9, false); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Errorf("kill of an exec that was deleted: %v", err)
	}
}

// The guest's clock is right again after a pause.
func testClock(t *testing.T, s *shim) {
	const still, near = 6 * time.Second, 2 * time.Second // the guest answers in seconds
	// late is by how much the guest's clock is late, at least.
	late := func() time.Duration {
		now := time.Now()
		out := ctr(t, s.node, nil, execArgs(s.vm, fmt.Sprintf("clock%d", now.UnixNano()), "date +%s")...)
		seconds, err := strconv.ParseInt(strings.TrimSpace(out.out), 10, 64)
		must(t, "read the guest's clock: "+out.errs, err)
		return now.Sub(time.Unix(seconds+1, 0))
	}
	before := late()
	_, err := s.Pause(s.ctx, &taskapi.PauseRequest{ID: s.vm})
	must(t, "pause", err)
	time.Sleep(still)
	_, err = s.Resume(s.ctx, &taskapi.ResumeRequest{ID: s.vm})
	must(t, "resume", err)
	err = harness.Poll(t.Context(), stepTimeout, func(context.Context) error {
		if now := late(); now > max(0, before)+near {
			return fmt.Errorf("it is late by %v, before the pause of %v by %v", now, still, before)
		}
		return nil
	})
	must(t, "clock", err)
}
