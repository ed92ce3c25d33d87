//go:build integration

package ctr

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// ctr run --rm: output, exit codes, stdin, a terminal; and nothing is left.
func TestRun(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	t.Run("output and exit code", func(t *testing.T) {
		ctr(t, n, nil, script("codes", "echo out; echo err >&2; exit 42")...).want(t, result{"out\n", "err\n", 42})
	})
	t.Run("exit codes", func(t *testing.T) {
		// Two VMs at a time: the machine has two processors. More codes: TestTask, in one VM.
		codes, running := []int{0, 255}, []*command(nil)
		for _, code := range codes {
			running = append(running, start(t, n, nil, script(fmt.Sprintf("code%d", code), fmt.Sprintf("exit %d", code))...))
		}
		for i, c := range running {
			c.wait(t).want(t, result{"", "", codes[i]})
		}
	})
	t.Run("stdin", func(t *testing.T) {
		data := bytes.Repeat([]byte("godwit, 16 bytes"), 1<<16)
		got := ctr(t, n, bytes.NewReader(data), append(runArgs(), images.Busybox, "cat", "cat")...)
		if got.code != 0 || sha256.Sum256([]byte(got.out)) != sha256.Sum256(data) {
			t.Errorf("exit code %d, %d of %d bytes came back; stderr %q", got.code, len(got.out), len(data), got.errs)
		}
	})
	t.Run("program not found", func(t *testing.T) {
		got := ctr(t, n, nil, append(runArgs(), images.Busybox, "nothing", "/bin/nothing")...)
		got.want(t, result{"", "/bin/nothing", 1})
		t.Log(got.errs)
	})
	t.Run("terminal", func(t *testing.T) { testTerminal(t, n) })
	if out := n.Ctr(t, "containers", "ls", "-q"); out != "" {
		t.Errorf("containers left: %s", out)
	}
}

func testTerminal(t *testing.T, n *harness.Node) {
	term := onTerminal(t, n, 40, 100, append(runArgs("-t"), images.Busybox, "term", "sh")...)
	term.stdout.says(t, "# ")
	term.types(t, "stty size; tty\n")
	term.stdout.says(t, "40 100\r")
	term.stdout.says(t, "/dev/pts/0\r")
	term.resize(t, 50, 120)
	term.types(t, "until stty size | grep '50 120'; do :; done\n")
	term.stdout.says(t, "\n50 120\r")
	// In a shell of its own: one that is between two commands keeps a ctrl-C for later.
	term.types(t, "sh -c 'echo begin; exec sleep 1000'\n")
	term.stdout.says(t, "\nbegin\r")
	term.types(t, "\x03")
	term.types(t, "echo code $?\n")
	term.stdout.says(t, "code 130\r")
	term.types(t, "exit 7\n")
	if got := term.wait(t); got.code != 7 {
		t.Errorf("exit code %d, want 7: %s", got.code, got.out)
	}
}
