package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func p[T any](v T) *T { return &v }

func good() Result {
	return Result{
		NonceSame: p(true), CounterBefore: p(uint64(100)), CounterAfter: p(uint64(101)), BootIDSame: p(true), FileOK: p(true),
		Answers: p(true), RAMBytes: p(uint64(1)), ResidentBytes: p(uint64(1)), PushedBytes: p(uint64(1)),
		SecondPushedBytes: p(uint64(1)),
		PauseMS:           p(1.0), DurableMS: p(1.0), WakeMS: p(1.0), FirstAnswerMS: p(1.0), VMM: p("qemu"),
	}
}

func TestCheckGood(t *testing.T) {
	if wrong := good().Check(); len(wrong) > 0 {
		t.Errorf("wrong: %v", wrong)
	}
}

// Whatever was not measured fails, by its name.
func TestCheckMissing(t *testing.T) {
	typ := reflect.TypeFor[Result]()
	for i := range typ.NumField() {
		r := good()
		reflect.ValueOf(&r).Elem().Field(i).SetZero()
		name := typ.Field(i).Tag.Get("json")
		if wrong := r.Check(); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name) {
			t.Errorf("without %s: %v", name, wrong)
		}
	}
}

func TestCheckWrong(t *testing.T) {
	for name, change := range map[string]func(r *Result){
		"other nonce":  func(r *Result) { r.NonceSame = p(false) },
		"fresh boot":   func(r *Result) { r.BootIDSame = p(false) },
		"torn file":    func(r *Result) { r.FileOK = p(false) },
		"no answer":    func(r *Result) { r.Answers = p(false) },
		"counter back": func(r *Result) { r.CounterAfter = p(uint64(99)) },
		"counter same": func(r *Result) { r.CounterAfter = p(uint64(100)) },
		"counter far":  func(r *Result) { r.CounterAfter = p(uint64(100 + maxGap + 1)) },
		"pause < 0":    func(r *Result) { r.PauseMS = p(-1.0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			change(&r)
			if wrong := r.Check(); len(wrong) != 1 {
				t.Errorf("wrong: %v", wrong)
			}
		})
	}
}

// The file has these keys and no others; a missing figure is null.
func TestWriteKeys(t *testing.T) {
	want := strings.Fields("nonce_same counter_before counter_after boot_id_same file_ok answers ram_bytes " +
		"resident_bytes " +
		"pushed_bytes second_pushed_bytes pause_ms durable_ms wake_ms first_answer_ms vmm")
	hasKeys(t, Result{}, want...)
}

// hasKeys wants the file of a result without figures to have these keys, and no others.
func hasKeys(t *testing.T, r interface{ Write(path string) error }, want ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out", "result.json")
	if err := r.Write(path); err != nil {
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
	if len(got) != len(want) {
		t.Errorf("%d keys, want %d: %s", len(got), len(want), data)
	}
	for _, key := range want {
		if v, ok := got[key]; !ok || v != nil {
			t.Errorf("%s: %v, %t", key, v, ok)
		}
	}
}
