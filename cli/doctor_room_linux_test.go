package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
)

// run_dir is a tmpfs with room for the page tables of what ram_dir holds, 2 % of that; tables that lie
// there have found it. What is not so is a warning that names both, and the size that is enough.
func TestRoomForTables(t *testing.T) {
	const mb = 1 << 20
	tmpfs := func(size, free uint64) unix.Statfs_t {
		return unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096, Blocks: size * mb / 4096, Bavail: free * mb / 4096}
	}
	for _, c := range []struct {
		name         string
		st           unix.Statfs_t
		tables, pool uint64
		says, remedy string // a remedy: a warning
	}{
		{"room", tmpfs(1000, 900), 0, 10_000 * mb, "900MiB for page tables; those of RAM may take 200MiB", ""},
		{"just enough", tmpfs(1000, 200), 0, 10_000 * mb, "200MiB", ""},
		{"too small", tmpfs(100, 99), 0, 10_000 * mb,
			"has 99MiB for page tables, and those of 9.8GiB in ram_dir may take 200MiB", "size=202M"},
		{"tables are there", tmpfs(1000, 150), 50 * mb, 10_000 * mb, "200MiB", ""},
		{"full of else", tmpfs(1000, 150), 49 * mb, 10_000 * mb, "has 199MiB", "size=1002M"},
		{"no ram_dir yet", tmpfs(10, 0), 0, 0, "a tmpfs with - for", ""},
		{"no bound", unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096}, 0, 10_000 * mb, "a tmpfs", ""},
		{"a disk", unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC, Bsize: 4096, Blocks: 1 << 30, Bavail: 1 << 30}, 0, 10_000 * mb,
			"/r is not on a tmpfs", "set run_dir"},
	} {
		f := runDirFinding("/r", &c.st, c.tables, c.pool)
		if f.OK != (c.remedy == "") || f.Fatal || !strings.Contains(f.Detail, c.says) ||
			!strings.Contains(f.Remedy, c.remedy) || (f.Remedy == "") != f.OK {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// doctor looks at the directories of the configuration, and counts tables alone.
func TestRunDirOfTheConfiguration(t *testing.T) {
	cfg := config.Default()
	cfg.RunDir = filepath.Join(t.TempDir(), "none")
	cfg.RAMDir = filepath.Join(cfg.RunDir, "ram")
	if f := checkRunDir(cfg); f.OK || f.Fatal || !strings.Contains(f.Detail, cfg.RunDir) || f.Remedy == "" {
		t.Errorf("without run_dir: %+v", f)
	}
	vm := filepath.Join(cfg.RunDir, "vm", "0123")
	if err := os.MkdirAll(vm, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"table": 100, "table.next": 20, "table.finished": 3, "agent.sock": 1000} {
		if err := os.WriteFile(filepath.Join(vm, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := tablesIn(cfg.RunDir); n != 123 {
		t.Errorf("tables of %d bytes", n)
	}
	all := checkHost(t.Context(), cfg)
	if f := checkRunDir(cfg); all[len(all)-1] != f || f.Check != "run_dir" || !strings.Contains(f.Detail, cfg.RunDir) {
		t.Errorf("%+v, and doctor says %+v", f, all[len(all)-1])
	}
}
