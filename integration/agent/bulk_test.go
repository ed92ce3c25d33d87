//go:build integration

package agent

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/vmm/qemu"

	"golang.org/x/sys/unix"
)

const (
	bulkSize   = 32 << 20
	bulkRounds = 5
	// bulkLimit is how many times slower than a relay output may be.
	bulkLimit = 2.0
)

// meter counts bytes, from the first one on.
type meter struct {
	n     int64
	first time.Time
	last  time.Time
}

func (m *meter) Write(b []byte) (int, error) {
	m.last = time.Now()
	if m.n == 0 {
		m.first = m.last
	}
	m.n += int64(len(b))
	return len(b), nil
}

// rate in MiB/s.
func (m *meter) rate() float64 { return float64(m.n>>20) / m.last.Sub(m.first).Seconds() }

// withRawPort gives the VM one more virtio-serial port, which nothing of ours uses.
func (m *machine) withRawPort() (socket string) {
	m.t.Helper()
	dir := m.t.TempDir() // the VMM has a /dev of its own, without m.dir
	socket = filepath.Join(dir, "raw.sock")
	script := filepath.Join(dir, "qemu")
	write(m.t, script, fmt.Sprintf("#!/bin/sh\nexec qemu-system-x86_64 \"$@\" -chardev "+
		"socket,id=raw,path=%s,server=on,wait=off "+
		"-device virtio-serial-pci,id=rawbus,disable-legacy=on -device "+
		"virtserialport,bus=rawbus.0,nr=1,chardev=raw,name=raw\n", socket))
	if err := os.Chmod(script, 0o700); err != nil {
		m.t.Fatal(err)
	}
	// It makes the socket in a directory of root's.
	if err := m.ram.Chown(0, -1); err != nil {
		m.t.Fatal(err)
	}
	driver, err := qemu.New(qemu.Driver{Accel: "tcg", Binary: script, AllowRoot: true})
	if err != nil {
		m.t.Fatal(err)
	}
	m.driver = driver
	return socket
}

// TestOutputNearTheChannel: what a process writes to its stdout, which is a pipe, reaches the
// host fast enough. The speed is at least half of the best there can be. The best is a program
// that copies a pipe to a port of its own, a megabyte at a time, unchecked and unconfirmed. Both
// take turns with a program that writes one buffer to the port again and again. Its figure,
// which no stdout can reach, is printed. The best round counts: on a busy machine the others
// measure what else runs. Where no round is left alone, the CPU time that either costs the VMM
// tells which needs more. What waits instead of working is seen in any case.
func TestOutputNearTheChannel(t *testing.T) {
	m := newMachine(t)
	socket := m.withRawPort()
	m.boot().setup(nil).init()
	raw, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := m.exec("mknod", process("sh", "-c", `for p in /sys/class/virtio-ports/*; do
		if [ "$(cat $p/name)" = raw ]; then IFS=: read major minor <$p/dev
		mknod /dev/raw c $major $minor; fi; done`), ""); err != nil {
		t.Fatal(err)
	}
	m.program("relay")
	var port, relay, output series
	write := dd()
	for i := range bulkRounds {
		port.add(m, func() float64 { return m.writeRaw(fmt.Sprint("port", i), raw, write+" of=/dev/raw") })
		relay.add(m, func() float64 { return m.writeRaw(fmt.Sprint("relay", i), raw, write+" | /tmp/relay /dev/raw") })
		output.add(m, func() float64 { return m.writeStdout(fmt.Sprint("bulk", i), write) })
	}
	rate, cost := slices.Max(relay.rates)/slices.Max(output.rates), slices.Min(output.costs)/slices.Min(relay.costs)
	t.Logf("MiB/s (ms of CPU): port %v, relay %v, stdout %v: %.2f times slower than the relay, %.2f times the CPU time",
		port, relay, output, rate, cost)
	if rate > bulkLimit && cost > bulkLimit || rate > 2*bulkLimit {
		t.Errorf("stdout is %.2f times slower than a relay and costs %.2f times as much, not %.0f", rate, cost, bulkLimit)
	}
	m.unread()
}

// unread starts a process that writes more than is kept, and whose output is not read: it waits,
// alone, ends when it is killed, and can be removed.
func (m *machine) unread() {
	m.t.Helper()
	ctx := m.t.Context()
	if err := m.start("unread",
		process("sh", "-c", "echo begun >/tmp/begun; "+dd()+"; echo ended >/tmp/ended")); err != nil {
		m.t.Fatal(err)
	}
	r, err := m.exec("beside", process("sh", "-c", "until [ -s /tmp/begun ]; do :; done; "+dd()+" | wc -c; ls /tmp/ended"),
		"")
	if err != nil || r.Out != fmt.Sprintln(bulkSize) || r.Status == 0 {
		m.t.Errorf("beside a process that nobody reads: %v, %v", r, err)
	}
	if _, err := m.agent.Kill(ctx, &agentv1.KillRequest{Id: "unread", Signal: uint32(unix.SIGKILL),
		All: true}); err != nil {
		m.t.Errorf("kill it: %v", err)
	}
	if e, err := m.agent.WaitExit(ctx, "unread"); err != nil || e.Status != 137 {
		m.t.Errorf("its end: %v, %v", e, err)
	}
	if _, err := m.agent.Remove(ctx, &agentv1.RemoveRequest{Id: "unread"}); err != nil {
		m.t.Errorf("remove it: %v", err)
	}
	// What fits between process and reader delays no process, and is there for a late reader.
	const fits = 1536 << 10
	if err := m.start("fits", process("sh", "-c", fmt.Sprintf("head -c %d /dev/zero", fits))); err != nil {
		m.t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(ctx, "fits"); err != nil || e.Status != 0 {
		m.t.Errorf("a process whose output fits: %v, %v", e, err)
	}
	var late meter
	if err := m.agent.NewStreams("fits", client.Offsets{}).CopyStdout(ctx, &late); err != nil || late.n != fits {
		m.t.Errorf("%d bytes of %d: %v", late.n, fits, err)
	}
}

// series are the rounds of one way to write.
type series struct{ rates, costs []float64 }

func (s *series) add(m *machine, round func() float64) {
	m.t.Helper()
	before := m.cpuTime()
	s.rates = append(s.rates, round())
	s.costs = append(s.costs, (m.cpuTime()-before).Seconds()*1000)
}

func (s series) String() string { return fmt.Sprintf("%.0f (%.0f)", s.rates, s.costs) }

// cpuTime is what the VMM's threads have used.
func (m *machine) cpuTime() (sum time.Duration) {
	m.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", m.vm.Process().PID))
	if err != nil || len(files) == 0 {
		m.t.Fatalf("threads of the VMM: %d, %v", len(files), err)
	}
	for _, name := range files {
		var used int64
		if data, err := os.ReadFile(name); err != nil {
			continue // a thread that has ended
		} else if _, err := fmt.Sscan(string(data), &used); err != nil {
			m.t.Fatal(err)
		}
		sum += time.Duration(used)
	}
	return sum
}

// program builds one of the tests' programs and puts it into the guest's /tmp.
func (m *machine) program(name string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		m.t.Fatalf("build %s: %v: %s", name, err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	to := "/tmp/" + name
	r, err := m.exec("put-"+name, process("sh", "-c", "cat >"+to+" && chmod 755 "+to), string(data))
	if err != nil || r.Status != 0 {
		m.t.Fatalf("put %s: %v: %v", name, r, err)
	}
}

// dd writes bulkSize bytes.
func dd() string { return fmt.Sprintf("dd if=/dev/zero bs=32k count=%d 2>/dev/null", bulkSize>>15) }

func (m *machine) writeRaw(id string, raw net.Conn, script string) float64 {
	m.t.Helper()
	if err := m.start(id, process("sh", "-c", script)); err != nil {
		m.t.Fatal(err)
	}
	var got meter
	if _, err := io.CopyN(&got, raw, bulkSize); err != nil {
		m.t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(m.t.Context(), id); err != nil || e.Status != 0 {
		m.t.Fatal(e, err)
	}
	return got.rate()
}

func (m *machine) writeStdout(id, script string) float64 {
	m.t.Helper()
	if err := m.start(id, process("sh", "-c", script)); err != nil {
		m.t.Fatal(err)
	}
	var got meter
	if err := m.agent.NewStreams(id, client.Offsets{}).CopyStdout(m.t.Context(), &got); err != nil {
		m.t.Fatal(err)
	}
	if got.n != bulkSize {
		m.t.Fatalf("%d bytes, not %d", got.n, bulkSize)
	}
	return got.rate()
}
