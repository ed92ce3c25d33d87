package starts

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func note(t *testing.T, path string, seconds ...float64) {
	t.Helper()
	for _, s := range seconds {
		if err := Note(path, Observation{Mode: Boot, Seconds: s}); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, r *Reader) (seconds []float64) {
	t.Helper()
	all, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		seconds = append(seconds, o.Seconds)
	}
	return seconds
}

// Every start is counted once: from a file that is not there yet, in pieces, and over
// the change to a new file.
func TestEachStartOnce(t *testing.T) {
	path := File(t.TempDir())
	r, err := NewReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := read(t, r); got != nil {
		t.Errorf("without a file: %v", got)
	}
	note(t, path, 1, 2)
	if diff := cmp.Diff([]float64{1, 2}, read(t, r)); diff != "" {
		t.Error(diff)
	}
	note(t, path, 3)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	note(t, path, 4)
	if diff := cmp.Diff([]float64{3, 4}, read(t, r)); diff != "" {
		t.Errorf("over the change: %s", diff)
	}
	if got := read(t, r); got != nil {
		t.Errorf("nothing new: %v", got)
	}
	later, err := NewReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	note(t, path, 5)
	if diff := cmp.Diff([]float64{5}, read(t, later)); diff != "" {
		t.Errorf("a reader that came later: %s", diff)
	}
}

func TestPiecesOfALine(t *testing.T) {
	path := File(t.TempDir())
	r, err := NewReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, piece := range []string{`{"mode":"boot","sec`, `onds":7}`, "\nnonsense\n"} {
		if got := read(t, r); got != nil {
			t.Errorf("before the line has ended: %v", got)
		}
		if _, err := f.WriteString(piece); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]float64{7}, read(t, r)); diff != "" {
		t.Error(diff)
	}
}

func TestRoomIsMade(t *testing.T) {
	path := File(t.TempDir())
	if err := os.WriteFile(path, make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	note(t, path, 1)
	if info, err := os.Stat(path); err != nil || info.Size() > 100 {
		t.Errorf("the file after a full one: %v, %v", info, err)
	}
}
