package agentd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestResources(t *testing.T) {
	tests := []struct {
		name, json string
		want       map[string]string
		is         func(error) bool
	}{
		{"none", ``, map[string]string{}, nil},
		{"memory", `{"memory":{"limit":1000,"swap":1500,"reservation":10}}`,
			map[string]string{"memory.max": "1000", "memory.swap.max": "500", "memory.low": "10", "memory.oom.group": "1"}, nil},
		{"unlimited", `{"memory":{"limit":-1},"pids":{"limit":-1}}`,
			map[string]string{"memory.max": "max", "memory.oom.group": "1", "pids.max": "max"}, nil},
		{"cpu", `{"cpu":{"shares":1024,"quota":50000,"period":100000,"cpus":"0"}}`,
			map[string]string{"cpu.weight": "39", "cpu.max": "50000 100000", "cpuset.cpus": "0"}, nil},
		{"unified wins", `{"memory":{"limit":5},"unified":{"memory.oom.group":"0","pids.max":"7"}}`,
			map[string]string{"memory.max": "5", "memory.oom.group": "0", "pids.max": "7"}, nil},
		{"empty parts", `{"blockIO":{},"network":{},"hugepageLimits":[{"pageSize":"2MB","limit":0}]}`, map[string]string{},
			nil},
		{"swap without limit", `{"memory":{"swap":5}}`, nil, errdefs.IsInvalidArgument},
		{"swap below limit", `{"memory":{"limit":10,"swap":5}}`, nil, errdefs.IsInvalidArgument},
		{"blockIO", `{"blockIO":{"weight":5}}`, nil, errdefs.IsNotImplemented},
		{"huge pages", `{"hugepageLimits":[{"pageSize":"2MB","limit":1}]}`, nil, errdefs.IsNotImplemented},
		{"rdma", `{"rdma":{"x":{}}}`, nil, errdefs.IsNotImplemented},
		{"unified path", `{"unified":{"../x.y":"1"}}`, nil, errdefs.IsInvalidArgument},
		{"not json", `{`, nil, errdefs.IsInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			r, err := parseResources([]byte(tt.json))
			if err == nil {
				err = cgroup(dir).apply(r)
			}
			if tt.is != nil {
				if !tt.is(err) {
					t.Fatal(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			files, _ := filepath.Glob(filepath.Join(dir, "*"))
			for _, f := range files {
				data, _ := os.ReadFile(f)
				got[filepath.Base(f)] = string(data)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestCgroupFiles(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"memory.max": "max\n", "memory.current": "42\n",
		"memory.events": "low 0\noom_kill 3\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := cgroup(dir)
	lower, check := int64(41), true
	err := c.apply(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &lower, CheckBeforeUpdate: &check}})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a limit below what is in use: %v", err)
	}
	for name, want := range map[string]uint64{"memory.max": 0, "memory.current": 42, "none": 0} {
		if got, err := c.value(name); got != want || err != nil {
			t.Errorf("%s is %d, %v", name, got, err)
		}
	}
	if c.oomKills() != 3 {
		t.Error("oom_kill was read wrongly")
	}
}

// What cannot be read says nothing: neither that a container has ended, nor that it uses nothing.
func TestCgroupThatCannotBeRead(t *testing.T) {
	c := cgroup(t.TempDir())
	limit, check := int64(1), true
	stats := func() error { _, err := c.stats(); return err }
	calls := map[string]func() error{
		"cgroup.events": func() error { return c.end(t.Context()) },
		"memory.current": func() error {
			return c.apply(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, CheckBeforeUpdate: &check}})
		},
		"cpu.stat": stats, "memory.peak": stats, "io.stat": stats,
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("without %s: %v", name, err)
		}
		path := filepath.Join(string(c), name)
		if err := os.Symlink(name, path); err != nil { // a loop: it is there, and cannot be opened
			t.Fatal(err)
		}
		if err := call(); !errdefs.IsUnavailable(err) {
			t.Errorf("with %s that cannot be read: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A limit below what is in use is refused where the client wants that looked at.
func TestCheckBeforeUpdate(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "memory.current"), []byte("1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, ok := range map[string]bool{"999": false, "1000": true, "-1": true} {
		r, err := parseResources([]byte(`{"memory":{"limit":` + limit + `,"checkBeforeUpdate":true}}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := cgroup(dir).apply(r); ok != (err == nil) || !ok && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("limit %s: %v", limit, err)
		}
	}
}
