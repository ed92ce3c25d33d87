package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are godwit's own with clocks that can be made wrong, and, if a mutation is asked for,
// with that fault built back in.
type programs struct {
	dir    string // Options.Programs of a harness
	clocks string // the value of ClockEnv
	runc   string // for the handler of CRI that no pod of the soak has
}

// build makes them in dir.
func build(ctx context.Context, root, dir, mutation string) (*programs, error) {
	p := &programs{runc: filepath.Join(root, "bin", "tools", "runc"),
		dir: filepath.Join(dir, "bin"), clocks: filepath.Join(dir, "clocks")}
	changed := filepath.Join(dir, "changed")
	for _, d := range []string{p.dir, p.clocks, changed} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return nil, err
	}
	r := replacements{}
	if err := r.clock(goroot, changed); err != nil {
		return nil, err
	}
	if mutation != "" {
		if err := r.mutate(root, changed, mutation); err != nil {
			return nil, err
		}
	}
	overlay := filepath.Join(changed, "overlay.json")
	if err := r.write(overlay); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlay, "-o", p.dir+"/",
		"./cmd/containerd-shim-godwit-v1", "./cmd/godwitd", "./cmd/godwit")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build programs of the soak: %w: %s", err, out)
	}
	return p, os.Symlink(filepath.Join(root, "bin", "guest"), filepath.Join(p.dir, "guest"))
}

func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

// mutation is a fault that was mended, built back in: a piece of a source file and what it is
// replaced by.
type mutation struct{ file, before, after string }

// ErrNoMutation is a name that none has.
var ErrNoMutation = errors.New("there is no such mutation")

func (r replacements) mutate(root, dir, name string) error {
	all, ok := mutations[name]
	if !ok {
		return fmt.Errorf("mutation %q: %w", name, ErrNoMutation)
	}
	for _, m := range all {
		if err := r.edit(dir, filepath.Join(root, m.file), m.before, m.after); err != nil {
			return fmt.Errorf("mutation %s: %w", name, err)
		}
	}
	return nil
}
