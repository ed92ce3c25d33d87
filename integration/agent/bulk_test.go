//go:build integration

package agent

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"godwit.dev/godwit/guest"
	"godwit.dev/godwit/vmm/qemu"
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
	socket = filepath.Join(m.dir, "raw.sock")
	script := filepath.Join(m.dir, "qemu")
	write(m.t, script, fmt.Sprintf("#!/bin/sh\nexec qemu-system-x86_64 \"$@\" -chardev socket,id=raw,path=%s,server=on,wait=off "+
		"-device virtio-serial-pci,id=rawbus,disable-legacy=on -device virtserialport,bus=rawbus.0,nr=1,chardev=raw,name=raw\n", socket))
	if err := os.Chmod(script, 0o700); err != nil {
		m.t.Fatal(err)
	}
	driver, err := qemu.New(qemu.Driver{Accel: "tcg", Binary: script})
	if err != nil {
		m.t.Fatal(err)
	}
	m.driver = driver
	return socket
}

// TestOutputNearTheChannel: what a process writes to its stdout, which is a pipe, reaches
// the host at no less than half the speed at which a program that copies a pipe to a port
// of its own gets it there, unchecked and unconfirmed. Both take turns with a program that
// writes to the port itself; its figure, which no stdout can reach, is printed. The best
// round counts: on a busy machine the others measure what else runs.
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
		if [ "$(cat $p/name)" = raw ]; then IFS=: read major minor <$p/dev; mknod /dev/raw c $major $minor; fi; done`), ""); err != nil {
		t.Fatal(err)
	}
	var port, relay, output []float64
	write := dd()
	for i := range bulkRounds {
		port = append(port, m.writeRaw(fmt.Sprint("port", i), raw, write+" of=/dev/raw"))
		relay = append(relay, m.writeRaw(fmt.Sprint("relay", i), raw, write+" | dd bs=32k of=/dev/raw"))
		output = append(output, m.writeStdout(fmt.Sprint("bulk", i), write))
	}
	ratio := slices.Max(relay) / slices.Max(output)
	t.Logf("MiB/s: port %.0f, relay %.0f, stdout %.0f: %.2f times slower than the relay", port, relay, output, ratio)
	if ratio > bulkLimit {
		t.Errorf("stdout is %.2f times slower than a relay, not %.0f", ratio, bulkLimit)
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
	if err := m.agent.NewStreams(id, guest.Offsets{}).CopyStdout(m.t.Context(), &got); err != nil {
		m.t.Fatal(err)
	}
	if got.n != bulkSize {
		m.t.Fatalf("%d bytes, not %d", got.n, bulkSize)
	}
	return got.rate()
}
