//go:build integration

package agent

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestTerminal(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	// Resize before the start, and again while it runs.
	resize := func(w, h uint32) {
		t.Helper()
		if _, err := m.agent.Resize(t.Context(), &agentv1.ResizeRequest{Id: "tty", Width: w, Height: h}); err != nil {
			t.Fatal(err)
		}
	}
	resize(100, 30)
	p := process("sh", "-c", "tty; stty size; read x; stty size; echo got $x; exit 5")
	p.Terminal = true
	if err := m.start("tty", p); err != nil {
		t.Fatal(err)
	}
	s := m.agent.NewStreams("tty", client.Offsets{})
	var out safeBuffer
	done := make(chan error, 1)
	go func() { done <- s.CopyStdout(t.Context(), &out) }()
	m.until(func() bool { return strings.Contains(out.String(), "30 100") })
	resize(80, 24)
	if err := s.CopyStdin(t.Context(), strings.NewReader("hi\n")); err != nil {
		t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(t.Context(), "tty"); err != nil || e.Status != 5 {
		t.Fatalf("%+v %v", e, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/dev/pts/", "24 80", "got hi"} {
		if !strings.Contains(out.String(), want) {
			t.Fatalf("%q is not in %q", want, out.String())
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestInitTerminal(t *testing.T) {
	m := newMachine(t).boot().setup(nil)
	p := process("sh", "-c", "test -c /dev/console && echo console; test -t 0 && echo terminal")
	p.Terminal = true
	if err := m.start("", p); err != nil {
		t.Fatal(err)
	}
	if r := m.finish("", ""); r.Out != "console\r\nterminal\r\n" || r.Status != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestSignals(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	kill := func(id string, sig unix.Signal) error {
		_, err := m.agent.Kill(t.Context(), &agentv1.KillRequest{Id: id, Signal: uint32(sig)})
		return err
	}
	tests := []struct {
		name, script string
		sig          unix.Signal
		want         uint32
	}{
		{"default", "echo up; sleep 1000", unix.SIGTERM, 143},
		{"trap", "trap 'exit 9' USR1; echo up; while true; do sleep 0.05; done", unix.SIGUSR1, 9},
		{"kill", "trap '' TERM; echo up; while true; do sleep 0.05; done", unix.SIGKILL, 137},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := m.start(tt.name, process("sh", "-c", tt.script)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.agent.Read(t.Context(), &agentv1.ReadRequest{Id: tt.name, Stream: agentv1.Stream_STREAM_STDOUT,
				WaitMs: 60000}); err != nil {
				t.Fatal(err)
			}
			if err := kill(tt.name, tt.sig); err != nil {
				t.Fatal(err)
			}
			if e, err := m.agent.WaitExit(t.Context(), tt.name); err != nil || e.Status != tt.want || e.OOM {
				t.Fatalf("%+v %v", e, err)
			}
			if err := kill(tt.name, tt.sig); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "already finished") {
				t.Fatalf("kill of a finished process: %v", err)
			}
			for _, want := range []bool{true, false} {
				_, err := m.agent.Remove(t.Context(), &agentv1.RemoveRequest{Id: tt.name})
				if (err == nil) != want {
					t.Fatalf("remove: %v", err)
				}
			}
		})
	}
	if _, err := m.agent.Remove(t.Context(), &agentv1.RemoveRequest{}); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("remove of what runs: %v", err)
	}
}

// When init ends, the rest of its pid namespace dies with it.
func TestInitTakesOthersAlong(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	if err := m.start("other", process("sleep", "1000")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.agent.Kill(t.Context(), &agentv1.KillRequest{Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "other"} {
		if e, err := m.agent.WaitExit(t.Context(), id); err != nil || e.Status != 137 {
			t.Fatalf("%q: %+v %v", id, e, err)
		}
	}
	if err := m.start("late", process("true")); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("start after the end: %v", err)
	}
	select {
	case <-m.vm.Done():
		t.Fatal("the VM ended with its container")
	default:
	}
	if _, err := m.agent.Shutdown(t.Context(), &agentv1.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	<-m.vm.Done()
	if e := m.vm.Exit(); !e.Clean {
		t.Fatalf("%+v", e)
	}
}

// A grandchild that holds the pipe delays neither Wait nor what came before.
func TestGrandchildHoldsOutput(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	if err := m.start("p", process("sh", "-c", "sleep 1000 & echo out; exit 4")); err != nil {
		t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(t.Context(), "p"); err != nil || e.Status != 4 {
		t.Fatalf("%+v %v", e, err)
	}
	r, err := m.agent.Read(t.Context(), &agentv1.ReadRequest{Id: "p", Stream: agentv1.Stream_STREAM_STDOUT, WaitMs: 1000})
	if err != nil || string(r.Data) != "out\n" || r.Eof {
		t.Fatalf("%v %v", r, err)
	}
}

func TestOOM(t *testing.T) {
	limit := int64(32 << 20)
	data, err := json.Marshal(specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}})
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t).boot().setup(func(r *agentv1.SetupRequest) { r.Resources = data })
	if err := m.start("", process("sh", "-c", "x=1234567890; while true; do x=$x$x; done")); err != nil {
		t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(t.Context(), ""); err != nil || e.Status != 137 || !e.OOM {
		t.Fatalf("%+v %v", e, err)
	}
	st, err := m.agent.Stats(t.Context(), &agentv1.StatsRequest{})
	if err != nil || st.OomKills == 0 || st.MemoryLimit != uint64(limit) {
		t.Fatalf("%+v %v", st, err)
	}
}

func TestManyExecs(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			r, err := m.exec(fmt.Sprint(i), process("sh", "-c", fmt.Sprintf("cat; echo %d; exit %d", i, i)), "in ")
			if err != nil || r.Status != uint32(i) || r.Out != fmt.Sprintf("in %d\n", i) {
				t.Errorf("%d: %+v %v", i, r, err)
			}
		})
	}
	wg.Wait()
	r, err := m.exec("zombies", process("sh", "-c", "ps -o stat | grep -c Z"), "")
	if err != nil || r.Out != "0\n" {
		t.Fatalf("zombies: %+v %v", r, err)
	}
}

// "All" is of the container: a further process that is killed with it takes no other
// process along, least of all init.
func TestKillExecAlone(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	if err := m.start("victim", process("sleep", "1000")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.agent.Kill(t.Context(), &agentv1.KillRequest{Id: "victim", Signal: 9, All: true}); err != nil {
		t.Fatal(err)
	}
	w, err := m.agent.Wait(t.Context(), &agentv1.WaitRequest{Id: "victim"})
	if err != nil || w.ExitStatus != 137 {
		t.Fatalf("%+v %v", w, err)
	}
	if r, err := m.exec("after", process("echo", "alive"), ""); err != nil || r.Out != "alive\n" {
		t.Fatalf("%+v %v", r, err)
	}
	all, err := m.agent.Processes(t.Context(), &agentv1.ProcessesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Processes {
		if p.Id == "" && p.Exited {
			t.Error("init ended with the exec")
		}
	}
}

func TestFilesAndReadOnlyRoot(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 400<<10) // 6.25 MiB: more than a message
	m := newMachine(t).boot().setup(func(r *agentv1.SetupRequest) {
		r.ReadOnlyRoot = true
		r.Sysctl = map[string]string{"kernel.shmmax": "4096", "net.ipv4.ip_forward": "1"}
		r.Mounts = append(r.Mounts, &agentv1.Mount{Type: "tmpfs", Source: "tmpfs", Target: "/locked",
			Options: []string{"ro"}},
			&agentv1.Mount{Type: "bind", Source: "/data", Target: "/again", Options: []string{"rbind"}})
		r.Files = []*agentv1.File{
			{Path: "/etc/hosts", Mode: 0o644, Data: []byte("127.0.0.1 localhost\n")},
			{Path: "/run/secrets/deep/token", Mode: 0o400, Uid: 1000, Gid: 7, Data: []byte("secret")},
			{Path: "/locked/file", Mode: 0o644, Data: []byte("locked")},
			{Path: "/data/big", Mode: 0o644, Data: big},
			{Path: "/data/dir", Mode: unix.S_IFDIR | 0o711},
			{Path: "/data/link", Mode: unix.S_IFLNK | 0o777, Link: "big"},
		}
	}).init()
	script := `cat /etc/hosts /locked/file; echo
stat -c '%a %u %g' /run/secrets/deep/token; stat -c '%a' /data/dir; readlink /data/link
wc -c </again/big; md5sum </data/link | cut -c-32
cat /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_forward
touch /x 2>/dev/null || echo ro; touch /locked/x 2>/dev/null || echo ro; touch /dev/shm/x && echo rw`
	r, err := m.exec("look", process("sh", "-c", script), "")
	want := "127.0.0.1 localhost\nlocked\n400 1000 7\n711\nbig\n6553600\n" + fmt.Sprintf("%x", md5.Sum(big)) +
		"\n4096\n1\nro\nro\nrw\n"
	if err != nil || r.Out != want {
		t.Fatalf("%v got %q %q\nwant %q", err, r.Out, r.Err, want)
	}
	// After a wake: read-only for the container, not for us.
	_, err = m.agent.Restored(t.Context(), &agentv1.RestoredRequest{Entropy: make([]byte, 32), Files: []*agentv1.File{
		{Path: "/etc/hosts", Mode: 0o644, Data: []byte("127.0.0.2 woken\n")}}})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := m.exec("again", process("cat", "/etc/hosts"), ""); err != nil || r.Out != "127.0.0.2 woken\n" {
		t.Fatalf("%+v %v", r, err)
	}
}

func TestSetupIsIdempotentAndUndone(t *testing.T) {
	m := newMachine(t).boot()
	request := func(change func(*agentv1.SetupRequest)) error {
		r := &agentv1.SetupRequest{
			Layers: []*agentv1.Disk{{Serial: "layer0", Type: "erofs"}}, Writable: &agentv1.Disk{Serial: "rw", Type: "ext4"},
		}
		change(r)
		_, err := m.agent.Setup(t.Context(), r)
		return err
	}
	bad := []struct {
		name   string
		change func(*agentv1.SetupRequest)
		is     func(error) bool
	}{
		{"no disk", func(r *agentv1.SetupRequest) { r.Layers[0].Serial = "none" }, errdefs.IsNotFound},
		{"no writable", func(r *agentv1.SetupRequest) { r.Writable.Serial = "none" }, errdefs.IsNotFound},
		{"type", func(r *agentv1.SetupRequest) { r.Layers[0].Type = "ntfs" }, errdefs.IsNotImplemented},
		{"mount", func(r *agentv1.SetupRequest) {
			r.Mounts = []*agentv1.Mount{{Type: "nfs", Target: "/x"}}
		}, errdefs.IsNotImplemented},
		{"sysctl", func(r *agentv1.SetupRequest) { r.Sysctl = map[string]string{"no.such": "1"} }, errdefs.IsInvalidArgument},
		{"file", func(r *agentv1.SetupRequest) {
			r.Files = []*agentv1.File{{Path: "/x", Mode: unix.S_IFBLK}}
		}, errdefs.IsNotImplemented},
		{"resources", func(r *agentv1.SetupRequest) { r.Resources = []byte("{") }, errdefs.IsInvalidArgument},
	}
	for _, tt := range bad {
		if err := request(tt.change); !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	same := func(*agentv1.SetupRequest) {}
	for range 2 { // after every failure, and again
		if err := request(same); err != nil {
			t.Fatal(err)
		}
	}
	if err := request(func(r *agentv1.SetupRequest) { r.Hostname = "other" }); !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
	if err := m.start("", process("sleep", "1000")); err != nil {
		t.Fatal(err)
	}
	if err := m.start("", process("false")); err != nil { // answers the pid
		t.Fatal(err)
	}
}
