package screen

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/mattn/go-runewidth"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// A message becomes a document with camelCase keys: numbers are numbers, times are RFC 3339 and null for none,
// enumerations are words, and what is absent is null.
func TestMessages(t *testing.T) {
	data, err := Encode(&nodev1.StatusResponse{Done: 1 << 60, Step: "a\xff<b>",
		Figures: &nodev1.Figures{PauseMs: math.NaN(), Notes: []string{"n"}, Passes: []*nodev1.Pass{{Ms: 0.5}}},
		Operation: &nodev1.Operation{Phase: nodev1.Phase_PHASE_LOST_AT_DEST, Kind: nodev1.Kind_KIND_UNSPECIFIED,
			OpenedUnixNano: 1e18 + 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"done": 1152921504606846976,`, `"step": "a\ufffd<b>"`, `"pauseMs": null`, `"notes": [
      "n"
    ]`, `"ms": 0.5`, `"phase": "lostAtDest"`, `"kind": ""`, `"openedTime": "2001-09-09T01:46:40.000000001Z"`,
		`"closedTime": null`, `"vm": null`, `"transfer": null`, `"attempts": []`, `"settled": false`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s in\n%s", want, data)
		}
	}
	data, err = Encode(&nodev1.MoveEvent{UnixNano: 1e18})
	if err != nil || !strings.Contains(string(data), `"time": "2001`) {
		t.Errorf("%s, %v", data, err)
	}
	later := &nodev1.Operation{Phase: 99} // of a build after this one
	if data, err = Encode(later); err != nil || !strings.Contains(string(data), `"phase": "99"`) {
		t.Errorf("%s, %v", data, err)
	}
}

// YAML keeps the order of the keys, and quotes only what would be something else.
func TestYAML(t *testing.T) {
	var out bytes.Buffer
	err := Document(&out, YAML, struct {
		B string   `json:"b"`
		A []string `json:"a"`
		E []int    `json:"e"`
	}{"true", []string{"x: y", "2001-01-01"}, []int{}})
	if want := "b: \"true\"\na:\n  - 'x: y'\n  - \"2001-01-01\"\ne: []\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", out.String(), err, want)
	}
}

// A series is a document a line, or documents of YAML.
func TestSeries(t *testing.T) {
	for format, want := range map[Format]string{JSON: "{\"a\":1}\n{\"a\":1}\n", YAML: "---\na: 1\n---\na: 1\n"} {
		var out bytes.Buffer
		for range 2 {
			if err := Each(&out, format, map[string]int{"a": 1}); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != want {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}

// The widest column is cut first, never one that names something; spare columns go before a line gets too long.
func TestCut(t *testing.T) {
	table := Table{Columns: []Column{{Title: "NAME", Keep: true}, {Title: "TEXT"}, {Title: "MORE", Spare: true},
		{Title: "N", Right: true}, {Title: "ALL", Wide: true}},
		Rows: [][]string{{"database-primary", strings.Repeat("\u00fc", 30), "more", "7", "all"},
			{"\x1bweb", "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57", "x\ny", "12", ""}}}
	for width := 30; width < 90; width++ {
		for line := range strings.Lines(table.text(width, false, false)) {
			if n := runewidth.StringWidth(strings.TrimRight(line, "\n")); n > width && width > 34 {
				t.Errorf("%d columns in %d: %q", n, width, line)
			}
		}
	}
	if got := table.text(40, false, false); !strings.Contains(got, "\u6f22\u5b57\u6f22\u5b57\u6f22\u2026") ||
		!strings.Contains(got, `\x1bweb  `) {
		t.Errorf("%s", got)
	}
	if got := table.text(0, true, false); strings.Contains(got, "\u2026") || !strings.Contains(got, "ALL") {
		t.Errorf("%s", got)
	}
	if got := table.text(1, false, false); !strings.Contains(got, "database-primary") || strings.Contains(got, "MORE") {
		t.Errorf("%s", got)
	}
}

// Figures are short, and exact enough to compare.
func TestFigures(t *testing.T) {
	for n, want := range map[uint64]string{0: "-", 1: "1B", 1023: "1023B", 1 << 10: "1KiB", 1500: "1.5KiB",
		512 << 20:  "512MiB",
		1000 << 20: "1GiB", 1 << 50: "1PiB", math.MaxUint64: "16EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Hour: "0s", time.Second: "1s", 119 * time.Second: "119s",
		2 * time.Minute: "2m", 47 * time.Hour: "47h", 72 * time.Hour: "3d", 3 * 365 * 24 * time.Hour: "3y"} {
		if got := Age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// A format that is none is refused by its name.
func TestFormats(t *testing.T) {
	if err := Format("xml").Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "wide, json") {
		t.Error(err)
	}
}
