package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/client"
)

// Sizes are docker's: a number with k, m or g.
func TestMemoryOfRun(t *testing.T) {
	for said, want := range map[string]int64{"": 0, "512m": 512 << 20, "1g": 1 << 30, "1.5G": 3 << 29, "64MiB": 64 << 20,
		"4096": 4096, "10kb": 10 << 10} {
		if got, err := parseMemory(said); err != nil || got != want {
			t.Errorf("%q = %d, %v", said, got, err)
		}
	}
	for _, said := range []string{"much", "-1m", "1e30g", "m", "nan", "NaNg", "inf"} {
		if _, err := parseMemory(said); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", said, err)
		}
	}
}

// run ends with docker's codes: 125 for a fault of godwit, also in its flags; that of the command without a word.
func TestExitCodesOfRun(t *testing.T) {
	for line, says := range map[string]string{"run --nope x": "--nope", "run -d --rm x": "--rm", "run -d -i x": "-t",
		"run -it x": "terminal", "run -p 0 x": "-p", "run -m much x": "--memory", "run -m nan x": "--memory",
		"run --cpus nan x": "--cpus", "run --cpus inf x": "--cpus", "run -l =x x": "--label",
		"run --stop-signal NO x": "--stop-signal", "run -e A --containerd /nowhere x": "/nowhere"} {
		var out, errs bytes.Buffer
		if got := Run(t.Context(), strings.Fields(line), &out, &errs); got != 125 || !strings.Contains(errs.String(), says) {
			t.Errorf("%s: exit code %d: %s", line, got, &errs)
		}
	}
	for err, want := range map[error]int{ran(0): 0, ran(7): 7,
		notRun(&client.CommandError{Code: 127, Err: errdefs.ErrNotFound}):                     127,
		notRun(fmt.Errorf("x: %w", &client.CommandError{Code: 126, Err: errors.New("busy")})): 126} {
		var errs bytes.Buffer
		if err != nil {
			(&options{}).printError(&errs, err)
		}
		if got := exitCode(err); got != want || (want == 7 && errs.Len() > 0) || (want > 100 && errs.Len() == 0) {
			t.Errorf("%v: exit code %d, want %d; said %q", err, got, want, &errs)
		}
	}
}

// The name of an image is shown without its tag; a port of the registry is none.
func TestTagsOfImages(t *testing.T) {
	for name, want := range map[string][2]string{"r.example/library/a:1": {"r.example/library/a", "1"},
		"r:5000/a": {"r:5000/a", ""}, "r:5000/a:b": {"r:5000/a", "b"}, "a@sha256:00": {"a@sha256:00", ""}} {
		if repository, tag := splitTag(name); repository != want[0] || tag != want[1] {
			t.Errorf("%s: %s %s", name, repository, tag)
		}
	}
}
