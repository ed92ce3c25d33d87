//go:build integration

package agent

import (
	"testing"
	"time"

	"godwit.dev/godwit/guest"
)

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// TestBulkOutput: 64 MiB arrive whole; the rate is reported, not judged.
func TestBulkOutput(t *testing.T) {
	const size = 64 << 20
	m := newMachine(t).boot().setup(nil).init()
	begin := time.Now()
	if err := m.start("bulk", process("dd", "if=/dev/zero", "bs=64k", "count=1024")); err != nil {
		t.Fatal(err)
	}
	var n counter
	if err := m.agent.NewStreams("bulk", guest.Offsets{}).CopyStdout(t.Context(), &n); err != nil {
		t.Fatal(err)
	}
	if n != size {
		t.Fatalf("%d bytes, not %d", n, size)
	}
	t.Logf("%.1f MiB/s", float64(size>>20)/time.Since(begin).Seconds())
}
