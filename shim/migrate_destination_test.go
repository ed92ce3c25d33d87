package shim

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"godwit.dev/godwit/network"
	"godwit.dev/godwit/shim/journal"
)

// A live move whose destination has other interfaces than the VM can use ends there before a
// page comes: it is fenced, the VMM is not even started, and nothing stays. (There is nothing to
// compare of queues: a tap has one, which godwit itself makes.)
func TestArrivalWantsTheNetwork(t *testing.T) {
	for name, change := range map[string]func([]network.Link) []network.Link{
		"a smaller MTU": func(l []network.Link) []network.Link { l[0].Found.MTU = 1400; return l },
		"no interface":  func([]network.Link) []network.Link { return nil },
		"as it was":     func(l []network.Link) []network.Link { return l },
		"a larger MTU":  func(l []network.Link) []network.Link { l[0].Found.MTU = 9000; return l },
	} {
		t.Run(name, func(t *testing.T) {
			w := coming(t)
			w.links = change(w.links)
			fits := name == "as it was" || name == "a larger MTU"
			w.must("create", w.receive())
			w.connect()
			if w.arrived() != fits {
				t.Fatalf("journal %s", w.phase())
			}
			if fits {
				w.must("kill", w.kill("", 9))
			} else if w.machine != nil || w.phase() != journal.Fenced {
				t.Errorf("journal %s, VMM %v", w.phase(), w.machine)
			}
			if status := w.wait(""); status != killed {
				t.Errorf("exit status %d", status)
			}
			w.must("delete", w.delete())
			w.nothingLeft()
		})
	}
}

// A source that connects as its destination's time ends sees its connection closed: it need not wait for a word.
func TestASourceThatComesTooLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	source := os.NewFile(uintptr(pair[0]), "source")
	defer source.Close()
	godwitd, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer godwitd.Close()
	if _, _, err := godwitd.WriteMsgUnix([]byte("x"), unix.UnixRights(pair[1]), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	if conn, err := (&arrival{listener: l}).nextSource(expired(t)); conn != nil || !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("a source after the deadline is %v, %v", conn, err)
	}
	if err := source.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the source reads %v", err)
	}
}
