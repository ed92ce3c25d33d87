package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tailLines of each log are shown after a failure.
const tailLines = 80

// daemonLogs carries the ends of all logs as one error, to be printed with the first.
type daemonLogs string

func (l daemonLogs) Error() string { return string(l) }

// Logs answers the ends of all daemons' logs; nil if they wrote nothing.
func (h *Harness) Logs() error {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(h.Dir, "log", "*"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || len(data) == 0 {
			continue
		}
		lines := slices.DeleteFunc(bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n")), func(line []byte) bool {
			return bytes.Contains(line, []byte("loading plugin")) // containerd's start, the same every time
		})
		cut := max(0, len(lines)-tailLines)
		fmt.Fprintf(&b, "--- %s (last %d of %d lines)\n%s\n", filepath.Base(f), len(lines)-cut, len(lines),
			bytes.Join(lines[cut:], []byte("\n")))
	}
	if b.Len() == 0 {
		return nil
	}
	return daemonLogs(b.String())
}
