package tracking

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"godwit.dev/godwit/snapshot/track"
)

// The test binary is the child when it is told so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Subcommand {
		if err := Child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func prober() Prober { return Prober{Command: []string{"/proc/self/exe", Subcommand}} }

// What works on this kernel depends on it and on the rights of the test: here the verdicts
// are consistent, and quick to be repeated.
func TestChoose(t *testing.T) {
	works := map[track.Way]error{}
	for _, way := range track.Ways {
		works[way] = nil
		if way != track.Content {
			works[way] = prober().Test(t.Context(), way)
		}
		t.Logf("%s: %v", way, works[way])
	}
	best := prober().Choose(t.Context(), Auto)
	for _, way := range track.Ways {
		if works[way] == nil {
			if best.Way != way {
				t.Errorf("%s works, chosen is %s", way, best.Way)
			}
			break
		}
		if !strings.Contains(best.Reason, string(way)+": ") {
			t.Errorf("the reason %q does not name %s", best.Reason, way)
		}
	}
	for _, way := range track.Ways {
		c := prober().Choose(t.Context(), string(way))
		if want := map[bool]track.Way{true: way, false: track.Content}[works[way] == nil]; c.Way != want {
			t.Errorf("wanted %s, chosen is %s, want %s", way, c.Way, want)
		}
	}
}

// The self-test of soft-dirty bits says what the kernel's own configuration says.
func TestSoftDirty(t *testing.T) {
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		t.Skip("the kernel does not tell its configuration")
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	has := strings.Contains(string(text), "CONFIG_MEM_SOFT_DIRTY=y")
	if err := prober().Test(t.Context(), track.SoftDirty); has != (err == nil) {
		t.Errorf("the kernel has soft-dirty bits: %v, self-test: %v", has, err)
	}
}

func TestRemembers(t *testing.T) {
	known := map[string]string{}
	p := prober()
	p.Remember = func(kind string, paths []string, find func() (string, error)) (string, error) {
		if _, ok := known[kind]; !ok {
			known[kind] = "not today"
		}
		return known[kind], nil
	}
	c := p.Choose(t.Context(), "")
	if c.Way != track.Content || len(known) != 2 || c.Reason != "uffd: not today; soft-dirty: not today" {
		t.Errorf("got %+v, %d remembered", c, len(known))
	}
	p.Remember = func(string, []string, func() (string, error)) (string, error) { return "", errors.New("no file") }
	if c := p.Choose(t.Context(), ""); c.Way != track.Content || !strings.Contains(c.Reason, "no file") {
		t.Errorf("got %+v", c)
	}
}

func TestChildThatIsNone(t *testing.T) {
	p := Prober{Command: []string{"/bin/true"}}
	if err := p.Test(t.Context(), track.SoftDirty); err == nil {
		t.Error("a child that answers nothing passes")
	}
	p.Command = []string{"/nonexistent"}
	if c := p.Choose(t.Context(), ""); c.Way != track.Content {
		t.Errorf("got %+v", c)
	}
}
