package logtimes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A rotation leaves one number free after the other, while older files are there: they are still of the log.
func TestFilesDuringRotation(t *testing.T) {
	names := func(log string, files []*os.File) (all []string) {
		for _, f := range files {
			all = append(all, f.Name()[len(log):])
		}
		return all
	}
	for free, want := range map[string][]string{
		"": {".3", ".2", ".1"}, ".1": {".3", ".2", ""}, ".2": {".3", ".1", ""}, ".3": {".2", ".1", ""},
	} {
		t.Run("free "+free, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			for _, number := range []string{"", ".1", ".2", ".3", ".6"} { // the last is none of the log
				f := open(t, log+number)
				if err := note(f, log, 0, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Remove(log+free), Sweep(log)); err != nil {
				t.Fatal(err)
			}
			files, err := Files(log, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer Close(files)
			if got := names(log, files); !slices.Equal(got, want) {
				t.Errorf("files %q, want %q", got, want)
			}
			if left, err := os.ReadDir(dir(log)); err != nil || len(left) != len(want) {
				t.Errorf("times of %d files are left, want %d: %v", len(left), len(want), err)
			}
		})
	}
}
