package harness

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// artefactsEnv names a directory that takes what is left of a test that failed: otherwise nothing of a node stays when
// the harness ends.
const artefactsEnv = "GODWIT_ARTEFACTS"

// keptMost is the size of the largest file that is kept.
const keptMost = 32 << 20

// Keep copies the daemons' logs (containerd's has those of the shims) to where GODWIT_ARTEFACTS says. Of every VM that
// is there it copies its journal, console, state of adoption and the VMM's log. What cannot be copied is left out: the
// test has failed already.
func (h *Harness) Keep(test string) {
	to := os.Getenv(artefactsEnv)
	if to == "" {
		return
	}
	h.KeepIn(filepath.Join(to, strings.NewReplacer("/", "-", " ", "_", ",", "").Replace(test)))
}

// KeepIn is Keep into a directory of the caller's.
func (h *Harness) KeepIn(to string) {
	keep(filepath.Join(h.Dir, "log"), filepath.Join(to, "log"))
	for _, n := range h.nodes {
		keep(filepath.Join(n.StateDir(), "vms"), filepath.Join(to, n.Name, "vms"))
		keep(filepath.Join(n.Dir, "run", "vm"), filepath.Join(to, n.Name, "run"))
		keep(n.Config, filepath.Join(to, n.Name, "config.toml"))
	}
}

func keep(from, to string) {
	_ = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil || info.Size() > keptMost || strings.HasSuffix(path, ".key") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		dest := filepath.Join(to, strings.TrimPrefix(path, from))
		if err := os.MkdirAll(filepath.Dir(dest), 0o755); err == nil {
			_ = os.WriteFile(dest, data, 0o644)
		}
		return nil
	})
}
