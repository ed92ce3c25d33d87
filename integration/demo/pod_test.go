package demo

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func goodPod() PodResult {
	return PodResult{Containers: p(3), NonceSame: p(true), CounterOK: p(true), TCPOK: p(true), FilesOK: p(true),
		LogsOK: p(true), Duplicates: p(0), Slept: p(true), MovedLive: p(true)}
}

// Whatever was not measured, or is wrong, fails by its name.
func TestPodCheck(t *testing.T) {
	if wrong := goodPod().Check(); len(wrong) > 0 {
		t.Errorf("good: %v", wrong)
	}
	typ := reflect.TypeFor[PodResult]()
	for i := range typ.NumField() {
		missing, bad := goodPod(), goodPod()
		reflect.ValueOf(&missing).Elem().Field(i).SetZero()
		switch v := reflect.ValueOf(&bad).Elem().Field(i).Interface().(type) {
		case *bool:
			*v = false
		case *int:
			*v = 2
		}
		name := typ.Field(i).Tag.Get("json")
		for what, r := range map[string]PodResult{"without": missing, "with a bad": bad} {
			if wrong := r.Check(); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name) {
				t.Errorf("%s %s: %v", what, name, wrong)
			}
		}
	}
}

// The file has these keys and no others.
func TestPodWriteKeys(t *testing.T) {
	want := strings.Fields("containers nonce_same counter_ok tcp_ok files_ok logs_ok duplicates_seen slept moved_live")
	hasKeys(t, PodResult{}, want...)
}

// What the sidecar tells are whole lines of CRI's log; any other line is an error.
func TestTold(t *testing.T) {
	s := &shop{log: filepath.Join(t.TempDir(), "log")}
	for text, want := range map[string][]int{
		"t stdout F count 1\nt stdout F count 2\n": {1, 2},
		"t stdout F connection lost\n":             nil,
		"t stdout P count 1\n":                     nil,
	} {
		if err := os.WriteFile(s.log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.told(); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
