package memtrim

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"
)

// resident is what of this program's file is mapped and cannot be written, in KiB.
func resident(t *testing.T) (kib int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	own := false
	for line := range bytes.Lines(smaps) {
		text := strings.TrimSpace(string(line))
		if m, ok := parse(text); ok {
			own = m.path == program && m.clean
		} else if rest, is := strings.CutPrefix(text, "Rss:"); is && own {
			var n int
			if _, err := fmt.Sscanf(rest, "%d kB", &n); err != nil {
				t.Fatal(err)
			}
			kib += n
		} else if strings.Contains(strings.Fields(text)[0], "-") {
			own = false // a mapping of something else
		}
	}
	return kib
}

// What a program has touched once is given back, and is there when it is used again.
func TestDown(t *testing.T) {
	touch := func() (letters int) {
		for r := range unicode.MaxRune {
			if unicode.IsLetter(r) {
				letters++
			}
		}
		return letters
	}
	letters := touch()
	before := resident(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	after := resident(t)
	if before == 0 || after >= before {
		t.Errorf("%d KiB are mapped, %d before", after, before)
	}
	t.Logf("%d KiB are mapped, %d before", after, before)
	if got := touch(); got != letters {
		t.Errorf("%d letters, %d before", got, letters)
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]mapping{
		"00400000-00e78000 r-xp 00000000 fe:00 4711                       /usr/bin/a program": {0x400000, 0xe78000, true,
			"/usr/bin/a program"},
		"00e78000-01a74000 r--p 00a78000 fe:00 4711  /usr/bin/p (deleted)": {0xe78000, 0x1a74000, true,
			"/usr/bin/p (deleted)"},
		"01a74000-01b15000 rw-p 01674000 fe:00 4711  /usr/bin/p": {0x1a74000, 0x1b15000, false,
			"/usr/bin/p"},
		"01b15000-01b16000 ---p 01674000 fe:00 4711  /usr/bin/p": {0x1b15000, 0x1b16000, false,
			"/usr/bin/p"},
	} {
		if got, ok := parse(line); !ok || got != want {
			t.Errorf("%s: %+v, want %+v", line, got, want)
		}
	}
	for _, line := range []string{
		"", "7ffd1000-7ffd2000 r-xp 00000000 00:00 0  [vdso]", "Rss:  12 kB",
		"01b15000-03b64000 rw-p 00000000 00:00 0", "7f00-7f01 rw-s 00000000 00:01 0 /memfd:ram (deleted)",
	} {
		if m, ok := parse(line); ok {
			t.Errorf("%q is %+v", line, m)
		}
	}
}
