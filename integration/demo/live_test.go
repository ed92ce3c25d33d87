package demo

import (
	"reflect"
	"strings"
	"testing"
)

func goodLive() LiveResult {
	return LiveResult{
		Mode: p("live"), NonceSame: p(true), RAMBytes: p(uint64(2)), ResidentBytes: p(uint64(1)), Passes: p(2),
		MovedBytes: p(uint64(1)),
		DowntimeMS: p(1.0), TotalMS: p(2.0), CounterOK: p(true), TCPOK: p(true), DiskOK: p(true), BootIDSame: p(true),
		Duplicates: p(0),
	}
}

// Whatever was not measured fails, by its name.
func TestLiveCheckMissing(t *testing.T) {
	if wrong := goodLive().Check(); len(wrong) > 0 {
		t.Errorf("good: %v", wrong)
	}
	typ := reflect.TypeFor[LiveResult]()
	for i := range typ.NumField() {
		r := goodLive()
		reflect.ValueOf(&r).Elem().Field(i).SetZero()
		name := typ.Field(i).Tag.Get("json")
		if wrong := r.Check(); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name) {
			t.Errorf("without %s: %v", name, wrong)
		}
	}
}

func TestLiveCheckWrong(t *testing.T) {
	for name, change := range map[string]func(r *LiveResult){
		"cold":          func(r *LiveResult) { r.Mode = p("cold") },
		"other nonce":   func(r *LiveResult) { r.NonceSame = p(false) },
		"fresh boot":    func(r *LiveResult) { r.BootIDSame = p(false) },
		"counter":       func(r *LiveResult) { r.CounterOK = p(false) },
		"connection":    func(r *LiveResult) { r.TCPOK = p(false) },
		"torn disk":     func(r *LiveResult) { r.DiskOK = p(false) },
		"seen twice":    func(r *LiveResult) { r.Duplicates = p(1) },
		"one pass":      func(r *LiveResult) { r.Passes = p(1) },
		"negative time": func(r *LiveResult) { r.DowntimeMS = p(-1.0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := goodLive()
			change(&r)
			if wrong := r.Check(); len(wrong) != 1 {
				t.Errorf("wrong: %v", wrong)
			}
		})
	}
}

// The file has these keys and no others; a missing figure is null.
func TestLiveWriteKeys(t *testing.T) {
	want := strings.Fields("mode nonce_same ram_bytes resident_bytes passes moved_bytes downtime_ms total_ms " +
		"counter_ok tcp_ok disk_ok boot_id_same duplicates_seen")
	hasKeys(t, LiveResult{}, want...)
}

// A move that did not succeed is no figure.
func TestReadMove(t *testing.T) {
	for _, text := range []string{"", "{}", `{"operation": {"phase": "failed"}}`} {
		if w, err := readMove(text); err == nil {
			t.Errorf("%q: %+v", text, w)
		}
	}
	w, err := readMove(`{"operation": {"phase": "succeeded", "mode": "live"}, ` +
		`"figures": {"copyMs": 2, "passes": [{}, {}]}}`)
	if err != nil || w.passes != 2 || w.Figures.Copy != 2 || w.Operation.Mode != "live" {
		t.Errorf("%+v, %v", w, err)
	}
}
