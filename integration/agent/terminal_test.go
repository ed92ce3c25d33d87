//go:build integration

package agent

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
)

const (
	terminalLines  = 100000
	terminalRounds = 5
)

// writer prints so many lines, each with its number, and then how often it had to leave the processor.
var writer = fmt.Sprintf(`BEGIN {
	for (i = 1; i <= %d; i++) printf "%%070d\n", i
	while ((getline line < "/proc/self/status") > 0) if (line ~ /ctxt_switches/) print line
}`, terminalLines)

var switchCount = regexp.MustCompile(`voluntary_ctxt_switches:\s+(\d+)`)

// A terminal carries 7 MB to the last byte. The process that writes them is interrupted far less
// often than there are lines. Both hold in each round; the times of a pipe and of a terminal
// in the same rounds are printed.
func TestTerminalCarriesALot(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	var want bytes.Buffer
	for i := range terminalLines {
		fmt.Fprintf(&want, "%070d\n", i+1)
	}
	times := map[bool][]time.Duration{}
	for round := range terminalRounds {
		for _, tty := range []bool{false, true} {
			begun := time.Now()
			out := m.printed(fmt.Sprintf("lot%d.%t", round, tty), tty, "awk", writer)
			times[tty] = append(times[tty], time.Since(begun))
			lines, rest, _ := strings.Cut(strings.ReplaceAll(out, "\r\n", "\n"), "voluntary")
			if lines != want.String() {
				t.Fatalf("terminal %t: %d bytes came before the counts, want %d", tty, len(lines), want.Len())
			}
			switches := 0
			for _, count := range switchCount.FindAllStringSubmatch("voluntary"+rest, -1) {
				n, err := strconv.Atoi(count[1])
				if err != nil {
					t.Fatal(err)
				}
				switches += n
			}
			t.Logf("terminal %t: %v, %d switches", tty, times[tty][round], switches)
			if round > 0 && switches > terminalLines/4 {
				t.Errorf("terminal %t: the process left the processor %d times for %d lines", tty, switches, terminalLines)
			}
		}
	}
	pipe, tty := slices.Min(times[false]), slices.Min(times[true])
	t.Logf("the best of %d rounds: pipe %v, terminal %v: %.1f times", terminalRounds, pipe, tty,
		float64(tty)/float64(pipe))
}

// A process that ends at once after its last bytes loses none of them on a terminal.
func TestTerminalKeepsTheLastBytes(t *testing.T) {
	m := newMachine(t).boot().setup(nil).init()
	for i := range 40 {
		size := 1 + i*977%9000 // below and above what the kernel holds of a terminal
		want := strings.Repeat("x", size) + "end"
		if out := m.printed(fmt.Sprint("last", i), true, "sh", "-c", `printf "%0`+fmt.Sprint(size)+
			`d" 0 | tr 0 x; printf end`); out != want {
			t.Fatalf("%d bytes came, want %d, the last of them %q", len(out), len(want), out[max(0, len(out)-8):])
		}
	}
}

// printed runs a process to its end and answers what it wrote.
func (m *machine) printed(id string, tty bool, args ...string) string {
	m.t.Helper()
	p := process(args...)
	p.Terminal = tty
	if err := m.start(id, p); err != nil {
		m.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := m.agent.NewStreams(id, client.Offsets{}).CopyStdout(m.t.Context(), &out); err != nil {
		m.t.Fatal(err)
	}
	if e, err := m.agent.WaitExit(m.t.Context(), id); err != nil || e.Status != 0 {
		m.t.Fatalf("%+v, %v, output %.200q", e, err, out.String())
	}
	if _, err := m.agent.Remove(m.t.Context(), &agentv1.RemoveRequest{Id: id}); err != nil {
		m.t.Fatal(err)
	}
	return out.String()
}
