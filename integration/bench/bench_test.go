package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// full is a result with a value for everything.
func full(rounds int) *Result {
	r := newResult(rounds, Groups)
	r.Commit = "0"
	r.Machine = Machine{CPUs: 1, Kernel: "k", GuestKernel: "g", VMM: "v", Accel: "tcg", Containerd: "c", Godwit: "w",
		Go: "go", LoadBefore: goal(0), LoadAfter: goal(1)}
	for _, f := range r.Figures {
		for i := range rounds {
			f.set(i, float64(i+1))
		}
	}
	return r
}

func TestCheckFull(t *testing.T) {
	if wrong := full(3).Check(); len(wrong) > 0 {
		t.Errorf("wrong: %v", wrong)
	}
}

// One missing value of one round fails, by its name, and is null in the file.
func TestCheckMissing(t *testing.T) {
	for i, name := range names() {
		r := newResult(2, Groups)
		*r = *full(2)
		f := r.Figures[i]
		*f = Figure{Name: f.Name, Raw: make([]*float64, 2)}
		f.set(0, 1)
		f.set(1, nan)
		if wrong := r.Check(); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name+" ") {
			t.Errorf("without %s: %v", name, wrong)
		}
		if f.Median != nil || f.Raw[1] != nil {
			t.Errorf("%s: median %v, raw %v", name, f.Median, f.Raw)
		}
	}
}

func TestCheckUnknown(t *testing.T) {
	r := full(1)
	r.Commit, r.Machine.Accel = "", ""
	if wrong := r.Check(); len(wrong) != 2 {
		t.Errorf("wrong: %v", wrong)
	}
}

func names() []string {
	var all []string
	for _, f := range figures(Groups) {
		all = append(all, f.Name)
	}
	return all
}

func TestNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range names() {
		if seen[n] {
			t.Errorf("%s stands twice in the list", n)
		}
		seen[n] = true
	}
}

// A missed goal is said and fails nothing.
func TestGoals(t *testing.T) {
	r := full(1)
	f := r.figure("start.extra")
	f.set(0, startGoal+1)
	if f.Met == nil || *f.Met || len(r.Check()) > 0 {
		t.Errorf("goal met %v, check %v", f.Met, r.Check())
	}
	var out bytes.Buffer
	if err := r.Table(&out); err != nil || !strings.Contains(out.String(), "<= 200 MISSED") {
		t.Errorf("%v, %s", err, &out)
	}
	f.set(0, startGoal)
	if !*f.Met {
		t.Error("a goal just met is missed")
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(tt.in); got != tt.want {
			t.Errorf("median of %v is %v", tt.in, got)
		}
	}
}

func TestWriteNull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "bench.json")
	if err := newResult(2, Groups).Write(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got Result
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Complete || len(got.Figures) != len(names()) || !bytes.Contains(data, []byte(`"median": null`)) {
		t.Errorf("%s", data)
	}
}

// The figures that are compared within a round come from that round alone.
func TestDerive(t *testing.T) {
	b := &bench{result: newResult(2, Groups), round: 1}
	b.note("start.ctr_run", 2500)
	b.derive()
	if f := b.result.figure("start.extra"); f.Raw[1] != nil {
		t.Errorf("a difference to what was not measured: %v", *f.Raw[1])
	}
	b.note("start.bare", 2400)
	b.note(sleepName(sizes[0], "pause"), 200)
	b.note(sleepName(sizes[1], "pause"), 220)
	b.note(sleepName(sizes[0], "resident"), 100)
	b.note(sleepName(sizes[1], "resident"), 120)
	b.derive()
	if f := b.result.figure(sleepName(sizes[1], "pause_ratio")); f.Raw[1] != nil {
		t.Errorf("pauses of unequal VMs were compared: %v", *f.Raw[1])
	}
	b.note(sleepName(sizes[1], "resident"), 110)
	b.derive()
	for name, want := range map[string]float64{"start.extra": 100, sleepName(sizes[1], "pause_ratio"): 1.1} {
		if v := b.result.figure(name).Raw[1]; v == nil || *v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	b.round = warmup
	b.note("start.bare", 1) // dropped
	if v := b.result.figure("start.bare").Raw[1]; *v != 2400 {
		t.Errorf("the warm-up overwrote a value: %v", *v)
	}
}

func TestParseStat(t *testing.T) {
	line := "7 (a) b c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 5 0 100 0 0"
	if s, ok := parseStat(line); !ok || s != 3 {
		t.Errorf("%v %v, want 3 seconds", s, ok)
	}
	if _, ok := parseStat("7 (x) S 1"); ok {
		t.Error("half a line is accepted")
	}
}

// Holes are left out, data is kept in order.
func TestCopyData(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := bytes.Repeat([]byte{7}, 1<<16)
	for _, at := range []int64{1 << 20, 8 << 20} {
		if _, err := f.WriteAt(page, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	n, err := copyData(&out, f)
	if err != nil || n != int64(out.Len()) || n < 2<<16 || n > 1<<20 || bytes.Count(out.Bytes(), []byte{7}) != 2<<16 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestMark(t *testing.T) {
	var s stamp
	for _, part := range []string{"noise\n", mark[:4]} {
		if _, err := s.Write([]byte(part)); err != nil || !s.at.IsZero() {
			t.Fatalf("after %q: %v, %v", part, s.at, err)
		}
	}
	if _, err := s.Write([]byte(mark[4:] + "\n")); err != nil || s.at.IsZero() {
		t.Errorf("the mark, in two pieces, is not seen: %v", err)
	}
}

// Every figure belongs to a group, and a run of one group wants no figure of another.
func TestGroups(t *testing.T) {
	seen := 0
	for _, g := range Groups {
		for _, f := range figures([]string{g}) {
			seen++
			if f.group() != g {
				t.Errorf("%s is in group %s, wanted for %s", f.Name, f.group(), g)
			}
		}
	}
	if all := len(figures(Groups)); seen != all {
		t.Errorf("the groups have %d figures, there are %d", seen, all)
	}
	b := &bench{result: newResult(1, []string{startGroup}), round: 0}
	b.note("exec.ctr", 1) // measured on the way, and not wanted
	if got := b.value("exec.ctr"); got == got {
		t.Errorf("a figure that is not wanted has the value %v", got)
	}
}
