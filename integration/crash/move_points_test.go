//go:build integration

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/internal/failpoint"
)

// role of a node in a move.
type role string

const (
	source      role = "source"
	destination role = "destination"
	keeper      role = "controller"
)

var roles = []role{source, destination, keeper}

// point is a place in a move where a program registers itself: on the n-th pass of it
// since the order.
type point struct {
	at   role
	name string // of a call, or of a record and what is written
	n    int
}

func (p point) String() string {
	if p.n == 1 {
		return fmt.Sprintf("%s %s", p.at, p.name)
	}
	return fmt.Sprintf("%s %s #%d", p.at, p.name, p.n)
}

// side of a point.
type edge struct {
	point
	side string // failpoint.Before, failpoint.After
}

func (e edge) String() string { return e.side + " " + e.point.String() }

// edgeOf reads what String writes. Other cases have names of three words, too.
func edgeOf(name string) (e edge, ok bool) {
	e.n = 1
	_, err := fmt.Sscanf(name, "%s %s %s #%d", &e.side, &e.at, &e.name, &e.n)
	side := e.side == failpoint.Before || e.side == failpoint.After
	return e, side && e.String() == name && (err == nil || strings.Count(name, " ") == 2)
}

func (e edge) file() string { return e.name + "." + e.side }

// pointed are programs with points: where they lie, and where they tell of them.
type pointed struct {
	programs string // Options.Programs of a harness
	dir      string // of points, a directory for each node
}

// points has programs with points for a world, in a directory that goes with the test.
func points(t *testing.T) (dir string, p *pointed) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gwpoints")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if p, err = build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv(failpoint.EnvDir, p.dir+"/$GODWIT_NODE")
	return dir, p
}

// build makes programs with points, next to the guest of the others. The ground has them.
func build(ctx context.Context, dir string) (*pointed, error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	p := &pointed{programs: filepath.Join(dir, "bin"), dir: filepath.Join(dir, "points")}
	if harness.Nested() {
		p.programs = filepath.Join(root, "bin", "ring", "points")
		return p, nil
	}
	if err := os.MkdirAll(p.programs, 0o755); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "points", "-o", p.programs+"/",
		"./cmd/containerd-shim-godwit-v1", "./cmd/godwitd", "./cmd/godwit")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build programs with points: %w: %s", err, out)
	}
	return p, os.Symlink(filepath.Join(root, "bin", "guest"), filepath.Join(p.programs, "guest"))
}

func (p *pointed) of(n *harness.Node) string { return filepath.Join(p.dir, n.Name) }

// forget empties the logs of all nodes, and takes back what is armed there.
func (p *pointed) forget(nodes ...*harness.Node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, os.RemoveAll(p.of(n)), os.MkdirAll(p.of(n), 0o755))
	}
	return errors.Join(errs...)
}

// passed lists the points that the programs of a node have passed, in order, both sides.
func (p *pointed) passed(n *harness.Node, at role) (all []edge, err error) {
	data, err := os.ReadFile(filepath.Join(p.of(n), "log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(data)) {
		_, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		seen[file]++
		at := edge{point{at, file[:strings.LastIndexByte(file, '.')], seen[file]}, file[strings.LastIndexByte(file, '.')+1:]}
		all = append(all, at)
	}
	return all, err
}

// lateBound is how long after the end of a move somebody may come by.
var lateBound = harness.Slow(3 * time.Second)

// hold is a point at which a program is to stop.
type hold struct {
	p *pointed
	n *harness.Node
	e edge
}

// arm makes the next programs that come by stop at e on node n.
func (p *pointed) arm(n *harness.Node, e edge) (*hold, error) {
	h := &hold{p, n, e}
	return h, os.WriteFile(filepath.Join(p.of(n), e.file()), []byte(strconv.Itoa(e.n)), 0o600)
}

// reached answers the host's pid of the program that stands there, once one does; 0 if its own end did not wait for it.
// over ends the wait: no program comes by any more.
func (h *hold) reached(ctx context.Context, over func() error) (pid int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, missed := time.Time{}, 0
	err = harness.Poll(ctx, runBound, func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(h.p.of(h.n), h.e.file()+".held"))
		if err != nil {
			err = errors.Join(fmt.Errorf("nobody is %s", h.e), over())
			switch {
			case !errors.Is(err, errOver):
			case ended.IsZero():
				ended = time.Now()
			case time.Since(ended) > lateBound: // some come by after the end
				cancel()
			}
			return err
		}
		inner, err := strconv.Atoi(string(data))
		if err != nil { // it is being written, or who wrote it has ended
			if missed++; missed < 10*goneLooks {
				return err
			}
			pid = 0
			return nil
		}
		pid, err = hostPID(h.n, inner)
		if !errors.Is(err, harness.ErrGone) {
			missed = 0
			return err
		}
		if missed++; missed < goneLooks {
			return err
		}
		return nil
	})
	return pid, err
}

// goneLooks in a row find no process that has ended.
const goneLooks = 10

// release may be called twice.
func (h *hold) release() {
	for _, suffix := range []string{"", ".held"} {
		_ = os.Remove(filepath.Join(h.p.of(h.n), h.e.file()+suffix))
	}
}

// A case that is not a side of a point is not counted as one (TestCrashMoves reports).
func TestNamesOfCases(t *testing.T) {
	for _, s := range scripts() {
		for _, h := range deaths(s) {
			if e, ok := edgeOf(h.name); ok {
				t.Errorf("%q of %q reads as %+v", h.name, s.name, e)
			}
		}
	}
	for _, e := range []edge{{point{source, "Machine.Vote", 1}, failpoint.Before}, {point{keeper, "records.Commit", 3},
		failpoint.After}} {
		if got, ok := edgeOf(e.String()); !ok || got != e {
			t.Errorf("%q reads as %+v, %v", e, got, ok)
		}
	}
}
