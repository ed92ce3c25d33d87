package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fullLive is a result of moves with a value for everything, which no goal minds.
func fullLive(rounds int) *Result {
	r := newResultOf(rounds, liveFigures(LiveGroups))
	*r = Result{Commit: "0", Rounds: rounds, Figures: r.Figures, Machine: full(1).Machine}
	for _, f := range r.Figures {
		f.Raw = make([]*float64, rounds)
		for i := range rounds {
			f.set(i, 1)
			if f.Most != nil && *f.Most == 0 {
				f.set(i, 0)
			}
		}
	}
	return r
}

// The names that the file is known by stand at its top, each with its median, and are null where a round has no value.
// The cold timeline has 3, 6, 12 and 15 s as its goals.
func TestLiveKeys(t *testing.T) {
	want := strings.Fields("gap_vs_n300_512m gap_vs_n300_2g gap_vs_n10_512m gap_vs_n10_2g stop_cont_ms_4g_dirty200 " +
		"flat_extra_ms content_stop_cont_ms_2g gate_ms " +
		"differing_pages last_pass_pages differing_pages_direct last_pass_pages_direct cold_accepted_ms cold_frozen_ms " +
		"cold_placed_ms cold_ready_ms")
	r := fullLive(2)
	if wrong := append(r.Check(), r.Wrong()...); len(wrong) > 0 {
		t.Errorf("wrong: %v", wrong)
	}
	r.figure("gate_ms").Median = nil
	path := filepath.Join(t.TempDir(), "bench-live.json")
	if err := r.WriteKeys(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		v, there := got[name]
		if f := r.figure(name); f == nil || f.Most == nil && f.Least == nil || !there || (v == nil) != (name == "gate_ms") {
			t.Errorf("%s: %v, %t; %+v", name, v, there, f)
		}
	}
	for name, goal := range map[string]float64{"cold_accepted_ms": 3000, "cold_frozen_ms": 6000, "cold_placed_ms": 12000,
		"cold_ready_ms": 15000} {
		if f := r.figure(name); f == nil || f.Most == nil || *f.Most != goal {
			t.Errorf("%s: %+v, its goal is %v", name, f, goal)
		}
	}
	if got["complete"] != false {
		t.Error("a result without a median is complete")
	}
}

// A page that differs, and a comparison of nothing, are wrong in one round of many already;
// a time never is.
func TestLiveWrong(t *testing.T) {
	r := fullLive(3)
	r.figure("differing_pages_direct").set(1, 1)
	r.figure("last_pass_pages").set(2, 0)
	r.figure("gate_ms").set(0, 1e9)
	if wrong := r.Wrong(); len(wrong) != 2 || len(r.Check()) > 0 {
		t.Errorf("wrong: %v", wrong)
	}
}

func TestDiffer(t *testing.T) {
	a := make([]byte, 3<<20+pageSize)
	b := bytes.Clone(a)
	for _, at := range []int{0, 1, pageSize, 2<<20 + 17, len(a) - 1} {
		b[at] = 1
	}
	if n, err := differ(bytes.NewReader(a), bytes.NewReader(b), noWallClock, t.Logf); err != nil || n != 4 {
		t.Errorf("%d pages, %v; want 4", n, err)
	}
	if n, err := differ(bytes.NewReader(a), bytes.NewReader(a), noWallClock, t.Logf); err != nil || n != 0 {
		t.Errorf("%d pages, %v; want none", n, err)
	}
	if _, err := differ(bytes.NewReader(a), bytes.NewReader(a[:len(a)-1]), noWallClock, t.Logf); err == nil {
		t.Error("files of different sizes are compared")
	}
}
