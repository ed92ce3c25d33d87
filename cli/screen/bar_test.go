package screen

import (
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"
)

// The line knows its total, its rate and how long it will take, and fits whatever the terminal is.
func TestBar(t *testing.T) {
	if got, want := lineOf("pull web", 300<<20, 600<<20, 10<<20, "note", 100), "pull web  ["+strings.Repeat("=", 19)+
		strings.Repeat(" ", 19)+"]   50%  300MiB/600MiB  10MiB/s  30s left  note"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := lineOf("pull", 0, 1<<30, 0, "", 28); got != "pull  [        ]    0%  0B/1GiB"[:28] && !strings.HasSuffix(got,
		"0%  0B/1GiB") {
		t.Errorf("%q", got)
	}
	if got := lineOf("pull", 0, 0, 0, "", 80); got != "pull" {
		t.Errorf("%q", got)
	}
	if got := lineOf("pull", 5<<20, 0, 1<<20, "", 80); got != "pull  5MiB  1MiB/s" {
		t.Errorf("%q", got)
	}
	if got := lineOf("pull", 9, 5, 0, "", 80); !strings.Contains(got, "100%") { // a total that was too low
		t.Errorf("%q", got)
	}
	for width := -1; width < 120; width++ {
		line := lineOf("send pages", 5<<20, 10<<20, 1<<20, "pass 2, and more", width)
		if n := runewidth.StringWidth(line); n > max(0, width) {
			t.Errorf("%d columns in %d", n, width)
		}
	}
}

// A rate follows what was done lately, and begins again where less is done than before.
func TestRate(t *testing.T) {
	var r rate
	at := time.Unix(1, 0)
	for i := range 20 {
		r.sample(at.Add(time.Duration(i)*time.Second), uint64(i)<<20)
	}
	if r.perSecond < 1<<20-1 || r.perSecond > 1<<20+1 {
		t.Errorf("%f", r.perSecond)
	}
	if r.sample(at.Add(time.Minute), 5); r.perSecond != 0 {
		t.Errorf("%f", r.perSecond)
	}
}

// Where there is no terminal each phase is one line, with what is new in its note.
func TestPhases(t *testing.T) {
	var out strings.Builder
	b := NewBar(&out)
	for i, note := range []string{"", "pass 1", "pass 1, 5MiB left", "pass 2, 4MiB left", "pass 2, 3MiB left"} {
		b.Show("send", uint64(i), 10, note)
	}
	b.Show("run\x1b", 0, 0, "")
	b.Finish()
	if want := "send\nsend: pass 1\nsend: pass 2, 4MiB left\nrun\\x1b\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
