package track

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// waiting is such a process, seen from outside.
type waiting struct {
	t         *testing.T
	ram       *os.File
	pid       int
	userfault int
	regions   []Region
	files     Files

	mu    sync.Mutex
	in    io.Writer
	next  int
	done  map[int]chan string
	want  [ramPages][]byte // what the guest should see; nil: zeros
	wrote [ramPages]bool
}

func startWaiting(t *testing.T) *waiting {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a userfaultfd that the kernel waits for is root's")
	}
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	w := &waiting{t: t, ram: os.NewFile(uintptr(fd), "ram"), done: map[int]chan string{}}
	if err := w.ram.Truncate(ramPages * pageSize); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asProcess+"=1", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=32")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{w.ram}, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.in, w.pid = in, cmd.Process.Pid
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); w.files.Close(); w.ram.Close() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the process has ended")
	}
	fmt.Sscan(lines.Text(), &w.userfault)
	go w.listen(lines)
	if err := Expect(w.pid, w.userfault, w.ram); err != nil {
		t.Fatal(err)
	}
	if w.files, w.regions, err = Find(w.pid, w.userfault, w.ram); err != nil || len(w.regions) != 2 {
		t.Fatal(w.regions, err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for p := 0; p < ramPages; {
		data := rnd.IntN(3) > 0
		for range 1 + rnd.IntN(40) {
			if p < ramPages && data {
				w.want[p] = bytes.Repeat([]byte{byte(1 + rnd.IntN(255)), byte(p), byte(p >> 8), 9}, pageSize/4)
			}
			p++
		}
	}
	return w
}

func (w *waiting) listen(lines *bufio.Scanner) {
	for lines.Scan() {
		var id int
		_, _ = fmt.Sscan(lines.Text(), &id)
		_, rest, _ := strings.Cut(lines.Text(), " ")
		w.mu.Lock()
		w.done[id] <- rest
		w.mu.Unlock()
	}
}

// order has the process do something; its answer comes when it has done so.
func (w *waiting) order(what string, page int) <-chan string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	w.done[w.next] = make(chan string, 1)
	fmt.Fprintln(w.in, w.next, what, page)
	return w.done[w.next]
}

// do is order that waits, and wants what the page has.
func (w *waiting) do(what string, page int) {
	w.t.Helper()
	select {
	case got := <-w.order(what, page):
		want := what + " 0"
		if what == "read" && w.want[page] != nil {
			want = fmt.Sprint("read ", w.want[page][0])
		}
		if got != want {
			w.t.Errorf("page %d: %q, want %q", page, got, want)
		}
	case <-time.After(time.Minute):
		w.t.Fatalf("%s of page %d waits", what, page)
	}
	if what != "read" {
		w.mu.Lock()
		w.wrote[page] = true
		w.mu.Unlock()
	}
}

// missing is one who brings pages.
func (w *waiting) missing() *Missing {
	w.t.Helper()
	m, err := NewMissing(w.regions, w.files.Fault)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// serve brings whatever somebody waits for, four pages at a time, until stop.
func (w *waiting) serve(m *Missing) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- m.Serve(ctx, func(offset int64) {
			page := int(offset / pageSize)
			if w.want[page] == nil {
				w.check(m.Zero(offset))
				return
			}
			w.put(m, page, 4)
		})
	}()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	}
}

func (w *waiting) check(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

// put brings the pages with content of a few from page on, in one call.
func (w *waiting) put(m *Missing, page, n int) {
	var data []byte
	for i := page; i < min(page+n, ramPages) && w.want[i] != nil; i++ {
		data = append(data, w.want[i]...)
	}
	w.check(m.Put(int64(page)*pageSize, data))
}

func (w *waiting) fill(m *Missing) {
	for p := 0; p < ramPages; p += 16 {
		for i := p; i < min(p+16, ramPages); i++ {
			if w.want[i] != nil && (i == p || w.want[i-1] == nil) {
				w.put(m, i, p+16-i)
			}
		}
	}
}

// whole ends the waiting, and wants RAM as it should be and the notes exact.
func (w *waiting) whole() {
	w.t.Helper()
	if err := Whole(w.pid, w.userfault, w.ram); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range []int{0, 1, ramPages / 2, ramPages - 1} {
		w.do("read", p)
	}
	w.do("write", 3)
	w.do("kernel", 5)
	page := make([]byte, pageSize)
	for p := range ramPages {
		if _, err := w.ram.ReadAt(page, int64(p)*pageSize); err != nil {
			w.t.Fatal(err)
		}
		want := make([]byte, pageSize)
		copy(want, w.want[p])
		if w.wrote[p] {
			copy(want[7:16], page[7:16]) // by the process
		}
		if !bytes.Equal(page, want) {
			w.t.Errorf("page %d differs: %x, want %x", p, page[:16], want[:16])
		}
		if w.wrote[p] && page[7] != 0xa5 && !bytes.Equal(page[8:16], make([]byte, 8)) {
			w.t.Errorf("page %d: what was written is lost", p)
		}
	}
	files := w.files
	files.RAM = w.ram
	tracker, err := Continue(UFFD, w.regions, files)
	if err != nil {
		w.t.Fatal(err)
	}
	var told [ramPages]bool
	known, err := tracker.Next(true, func(offset, end int64) {
		for ; offset < end; offset += pageSize {
			told[offset/pageSize] = true
		}
	})
	if err != nil || !known {
		w.t.Fatal(known, err)
	}
	for p := range ramPages {
		// What has no content may be told.
		if w.wrote[p] && !told[p] || told[p] && !w.wrote[p] && w.want[p] != nil {
			w.t.Errorf("page %d: written %v, told %v", p, w.wrote[p], told[p])
		}
	}
}

// Pages come as they are asked for, in any order, by the process and the kernel in its name. At
// the same time a filler brings the same ones.
func TestMissing(t *testing.T) {
	w := startWaiting(t)
	m := w.missing()
	stop := w.serve(m)
	var users sync.WaitGroup
	for i := range 8 {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(i)))
			for range 60 {
				w.do([]string{"read", "read", "write", "kernel"}[rnd.IntN(4)], rnd.IntN(ramPages))
			}
		})
	}
	for range 2 {
		users.Go(func() { w.fill(m) })
	}
	users.Wait()
	w.whole()
	stop()
}

// Without anybody who asks everything comes, and nothing counts as written.
func TestMissingUntouched(t *testing.T) {
	w := startWaiting(t)
	w.fill(w.missing())
	w.whole()
}

// What was asked of one that is gone is asked of the next one again, which may bring once more
// what is there.
func TestMissingTakeover(t *testing.T) {
	w := startWaiting(t)
	for p := range ramPages {
		if w.want[p] != nil {
			w.put(w.missing(), p, 1)
			break
		}
	}
	var asked []<-chan string
	heard := make(chan struct{}, ramPages)
	ctx, cancel := context.WithCancel(t.Context())
	dead := make(chan error, 1)
	go func() { dead <- w.missing().Serve(ctx, func(int64) { heard <- struct{}{} }) }() // and answers nothing
	pages := []int{40, 41, 300, 700, 1000}
	for _, p := range pages {
		asked = append(asked, w.order("read", p))
	}
	<-heard
	cancel()
	<-dead
	for i, a := range asked {
		select {
		case got := <-a:
			if w.want[pages[i]] == nil || got != fmt.Sprint("read ", w.want[pages[i]][0]) {
				t.Errorf("page %d came from nowhere: %s", pages[i], got)
			}
		default:
		}
	}
	m := w.missing()
	stop := w.serve(m)
	for i, a := range asked {
		select {
		case <-a:
		case <-time.After(time.Minute):
			t.Fatalf("page %d waits for one that is gone", pages[i])
		}
	}
	w.fill(m)
	w.fill(m)
	w.whole()
	stop()
}

// The end can be taken again by who does not know that it was.
func TestWholeTwice(t *testing.T) {
	w := startWaiting(t)
	m := w.missing()
	stop := w.serve(m)
	w.do("write", 9)
	w.fill(m)
	if err := Whole(w.pid, w.userfault, w.ram); err != nil {
		t.Fatal(err)
	}
	w.do("kernel", 11)
	w.fill(w.missing())
	w.whole()
	stop()
}

// A process that is killed while it waits ends, and the caller that brings a page is told.
func TestMissingProcessIsGone(t *testing.T) {
	w := startWaiting(t)
	m := w.missing()
	w.order("read", 1)
	if err := unix.Kill(w.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	var err error
	for err == nil && time.Now().Before(deadline) {
		err = m.Put(0, noPage[:])
		time.Sleep(time.Millisecond)
	}
	if !errdefs.IsNotFound(err) {
		t.Errorf("put into a process that is gone: %v", err)
	}
	if err := m.Put(ramPages*pageSize, noPage[:]); !errdefs.IsOutOfRange(err) {
		t.Errorf("put after the end: %v", err)
	}
}

// TestExpectTouched: RAM of which a process has touched a page cannot be waited for.
func TestExpectTouched(t *testing.T) {
	w := startWaiting(t)
	if err := Release(w.pid, w.userfault, w.ram); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ram.WriteAt([]byte{1}, 5*pageSize); err != nil {
		t.Fatal(err)
	}
	if err := Expect(w.pid, w.userfault, w.ram); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "0x5000") {
		t.Errorf("with a page: %v", err)
	}
	if err := Empty(w.ram); err != nil {
		t.Fatal(err)
	}
	if err := Expect(w.pid, w.userfault, w.ram); err != nil {
		t.Errorf("emptied: %v", err)
	}
}

// TestCheckRegistered: RAM is registered while it waits and while notes are taken, and not after a release.
func TestCheckRegistered(t *testing.T) {
	w := startWaiting(t)
	if err := CheckRegistered(w.files, w.regions); err != nil {
		t.Errorf("while it waits: %v", err)
	}
	if err := Whole(w.pid, w.userfault, w.ram); err != nil {
		t.Fatal(err)
	}
	if err := CheckRegistered(w.files, w.regions); err != nil {
		t.Errorf("while notes are taken: %v", err)
	}
	if err := Release(w.pid, w.userfault, w.ram); err != nil {
		t.Fatal(err)
	}
	if err := CheckRegistered(w.files, w.regions); !errors.Is(err, ErrRemapped) {
		t.Errorf("released: %v", err)
	}
	if err := CheckRegistered(Files{Pagemap: os.Stdin}, w.regions); err == nil || errors.Is(err, ErrRemapped) {
		t.Errorf("a file that cannot tell: %v", err)
	}
}
