package spec

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// A Spec of another build is read whole or refused, naming what is in the way.
func TestDecode(t *testing.T) {
	if s, err := Decode([]byte(`{"version":1,"memory":4096}`)); err != nil || s.Memory != 4096 {
		t.Fatalf("%v, %v", s, err)
	}
	for name, tt := range map[string]struct {
		data, says string
		is         func(error) bool
	}{
		"unknown field": {`{"version":1,"antigravity":true}`, `"antigravity"`, errdefs.IsInvalidArgument},
		"inside":        {`{"version":1,"nics":[{"quux":1}]}`, `"quux"`, errdefs.IsInvalidArgument},
		"wrong type":    {`{"version":1,"memory":"much"}`, "memory", errdefs.IsInvalidArgument},
		"newer":         {`{"version":99,"antigravity":true}`, "version is 99", errdefs.IsNotImplemented},
		"cut":           {`{"version":1`, "unexpected EOF", errdefs.IsInvalidArgument},
		"more":          {`{"version":1}{}`, "after its end", errdefs.IsInvalidArgument},
	} {
		if _, err := Decode([]byte(tt.data)); !tt.is(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
