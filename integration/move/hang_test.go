//go:build integration

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// What the commands of the VM's annotations do, in seconds, and how long they may take.
const (
	probeTakes, wordTakes = "/data/probe-takes", "/data/word-takes"
	signBound             = 10 * time.Second
	forever, none         = "1000", "0"
	asLongAs              = "gate" // a word ends when the test says so
	gate                  = "7171" // the port that it asks
)

// hooks makes commands that take as long as their files say. A word is heard when it begins,
// and when it ends.
func hooks(t *testing.T, n *harness.Node) {
	t.Helper()
	const ready = "#!/bin/sh\nexec /bin/busybox sleep $(cat " + probeTakes + ")"
	const hook = "#!/bin/sh\necho \"$@\" >>" + heardFile +
		"\nif test $(cat " + wordTakes + ") = " + asLongAs + "; then /bin/busybox nc " + harness.Gateway + " " + gate +
		" </dev/null; echo \"end $@\" >>" + heardFile + "; exit; fi\ni=0\nwhile test $i -lt $(cat " + wordTakes +
		"); do i=$((i + 1)); /bin/busybox sleep 1; done\necho \"end $@\" >>" + heardFile
	n.Ctr(t, "task", "exec", "--exec-id", "hooks", vm, "/bin/sh", "-c",
		fmt.Sprintf(`echo '%s' >%s; echo '%s' >%s; chmod +x %s %s; echo %s >%s; echo %s >%s`,
			ready, readyFile, hook, hookFile, readyFile, hookFile, none, probeTakes, forever, wordTakes))
}

func takes(t *testing.T, n *harness.Node, file, seconds string) {
	t.Helper()
	n.Ctr(t, "task", "exec", "--exec-id", "takes", vm, "/bin/sh", "-c", "echo "+seconds+" >"+file)
}

// gated makes the listener that the words ask. A word ends when open has been called. The channel begun tells of the
// first word, because no task of containerd could look into the VM then.
func gated(t *testing.T, h *harness.Harness) (begun <-chan struct{}, open func()) {
	t.Helper()
	l, err := h.Listen(net.JoinHostPort(harness.Gateway, gate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	first, opened := make(chan struct{}), make(chan struct{})
	go func() {
		for heard := false; ; {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if !heard {
				close(first)
			}
			heard = true
			<-opened
			conn.Close()
		}
	}()
	return first, sync.OnceFunc(func() { close(opened) })
}

// succeeds has the VM's shim killed, and waits for the one that stands for it.
func succeeds(t *testing.T, n *harness.Node) noted {
	t.Helper()
	was := journal(n, vm).Shim.PID
	if _, err := n.Run(t.Context(), "kill", "-KILL", strconv.Itoa(was)); err != nil {
		t.Fatal(err)
	}
	return until(t, n, vm, "it is adopted", func(j noted) bool { return j.Adopted && j.Shim.PID != was })
}

// retryRefused does what may be refused while a successor settles in.
func retryRefused(t *testing.T, n *harness.Node, args ...string) (r taken) {
	t.Helper()
	err := harness.Poll(t.Context(), bound, func(ctx context.Context) error {
		out, err := n.RunGodwit(ctx, append([]string{"-o", "json"}, args...)...)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(out), &r)
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A word that never ends is killed in its time, and a snapshot waits for it no longer than that. A workload that
// never says that it is ready costs its snapshot only. A word whose shim is killed in its midst goes on in the
// guest: the successor waits for its end, and tells nothing twice.
func TestHangingSigns(t *testing.T) {
	h := harness.New(t, harness.Options{Nodes: 1, Registry: harness.PlainHTTP, Godwitd: true, Images: true,
		Config: func(*harness.Node) string {
			return fmt.Sprintf("[timeouts]\nnotify = %q\nready = %q\n", signBound, signBound)
		}})
	n, watch := h.Node(0), listen(t, h)
	boot(t, n, watch, "--annotation", "godwit.dev/ready="+readyFile, "--annotation", "godwit.dev/notify="+hookFile)
	hooks(t, n)
	goesOn := func(what string) {
		t.Helper()
		watch.Mark(what)
		after(t, watch, what)
	}

	first, _ := take(t, n, "checkpoint", vm)
	hears(t, n, "snapshotted "+first.Operation.Digest)
	begun := time.Now()
	second, _ := take(t, n, "checkpoint", vm)
	if took := time.Since(begun); took > signBound+bound/2 {
		t.Errorf("a word that hangs held a checkpoint up for %v", took)
	}
	goesOn("a word hangs")
	hears(t, n, "snapshotted "+first.Operation.Digest, "snapshotted "+second.Operation.Digest)

	takes(t, n, probeTakes, forever)
	begun = time.Now()
	_, err := n.RunGodwit(t.Context(), "checkpoint", vm)
	if err == nil || !strings.Contains(err.Error(), "it is not ready") ||
		!strings.Contains(err.Error(), "its last answer: none") {
		t.Errorf("checkpoint of a VM that never says that it is ready: %v", err)
	}
	if took := time.Since(begun); took > 2*signBound+bound/2 { // the word before is waited for, too
		t.Errorf("it was asked for %v", took)
	}
	goesOn("it is asked for ever")
	err = harness.Poll(t.Context(), bound, func(context.Context) error {
		if runs(t, n, forever) || runs(t, n, hookFile) {
			return errors.New("a command that was given up runs on in the guest")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	takes(t, n, probeTakes, none)
	takes(t, n, wordTakes, asLongAs)
	began, end := gated(t, h)
	defer end()
	reached, open := holdManifest(h) // containerd gives a VM up whose shim dies, unless an operation holds it
	n.Godwit(t, "hibernate", "--detach", vm)
	<-reached
	succeeds(t, n)
	open()
	goesOn("its shim was killed in a hibernate")
	word := "snapshotted " + retryRefused(t, n, "checkpoint", vm).Operation.Digest
	until(t, n, vm, "a word is under way", func(j noted) bool {
		return len(j.Untold) == 1 && "snapshotted "+j.Untold[0].Digest == word
	})
	select {
	case <-began:
	case <-time.After(bound):
		t.Fatal("the word does not begin")
	}
	if j := succeeds(t, n); len(j.Untold) != 1 {
		t.Errorf("the word is over, and was to be under way: %+v", j)
	}
	end()
	goesOn("its shim was killed in a word")
	slept := retryRefused(t, n, "hibernate", vm)
	n.Godwit(t, "wake", "--on", n.Name, vm)
	goesOn("it woke")
	asleep, awake := "snapshotted "+slept.Operation.Digest, "restored "+slept.Operation.Digest
	hears(t, n, "snapshotted "+first.Operation.Digest, "snapshotted "+second.Operation.Digest,
		word, "end "+word, asleep, "end "+asleep, awake, "end "+awake)
	remove(t, n, vm)
}
