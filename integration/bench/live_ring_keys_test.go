package bench

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// The file has the names that it is known by. Where no figure has a median, the value is null and is named as not
// measured: a size of guest that did not run is never a number.
func TestLiveRingKeys(t *testing.T) {
	var lines bytes.Buffer
	for kind, stop := range map[string]float64{"cloud-hypervisor": 60, "qemu": 40} {
		r := newResultOf(1, ringFigures(kind))
		r.Machine.VMM = kind
		r.figure("stop_cont_ms_512m").set(0, stop)
		if f := r.figure("gap_vs_ch_own_512m"); f != nil {
			f.set(0, 2)
		}
		if err := json.NewEncoder(&lines).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "jq", "-s", "--arg", "commit", "c", "-f", "../../tools/bench-live-ring.jq")
	cmd.Stdin = &lines
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if got["stop_cont_vs_qemu"] != 1.5 || got["gap_vs_ch_own_512m"] != 2.0 {
		t.Errorf("%s", out)
	}
	var named strings.Builder
	for _, name := range got["not_measured"].([]any) {
		named.WriteString(name.(string) + " ")
	}
	for _, name := range strings.Fields("gap_vs_ch_own_2g wake_vs_ch_restore_2g start_vs_boot differing_pages") {
		if v, there := got[name]; !there || v != nil || !strings.Contains(named.String(), name+" ") {
			t.Errorf("%s is %v, and not measured are %s", name, v, &named)
		}
	}
}

// A run that ended after fewer rounds than it was made for has the medians of those.
func TestCut(t *testing.T) {
	r := newResultOf(7, ringFigures("qemu"))
	r.figure("gap_ms_512m").set(0, 3)
	r.cut(1)
	if m := r.figure("gap_ms_512m").Median; m == nil || *m != 3 || r.Rounds != 1 {
		t.Errorf("median %v of %d rounds", m, r.Rounds)
	}
	if m := r.figure("gap_ms_2g").Median; m != nil {
		t.Errorf("a median %v of nothing", *m)
	}
}
