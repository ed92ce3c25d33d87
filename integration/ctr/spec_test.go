//go:build integration

package ctr

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// What ctr's flags say of the container holds in the guest, as the guest tells.
func TestSpec(t *testing.T) {
	h := harness.New(t, harness.Options{Images: true})
	n := h.Node(0)
	n.CheckClean(t)
	dir := volume(t)
	t.Run("refused", func(t *testing.T) {
		got := ctr(t, n, nil, script("refused", "true", "--mount", "type=bind,src="+dir+",dst=/vol,options=rbind:rw")...)
		got.want(t, result{"", "godwit.dev/volumes=copy", 1})
		got.want(t, result{"", dir, 1})
	})
	t.Run("flags", func(t *testing.T) { testFlags(t, n, dir) })
	t.Run("user namespace", func(t *testing.T) { testUsers(t, n) })
	t.Run("out of memory", func(t *testing.T) { testOOM(t, n, dir) })
}

// volume is a directory of the host for bind mounts.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"file": "of the host\n", "resolv.conf": "nameserver 192.0.2.1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "file"), 0o640); err != nil {
		t.Fatal(err)
	}
	return dir
}

const tell = `echo env=$A; echo user=$(id -u):$(id -g); echo cwd=$(pwd); echo host=$(hostname)
echo resolv=$(cat /etc/resolv.conf); echo mode=$(stat -c %a:%u /vol/file); echo file=$(cat /vol/file)
touch /x 2>/dev/null && echo root is writable
touch /vol/x 2>/dev/null && echo volume is writable
echo cpus=$(grep -c ^processor /proc/cpuinfo); echo memory=$(grep MemTotal /proc/meminfo | tr -dc 0-9)
echo bounding=$(awk '/CapBnd/ {print $2}' /proc/self/status)`

func testFlags(t *testing.T, n *harness.Node, dir string) {
	got := ctr(t, n, nil, script("flags", tell, "--memory-limit", strconv.Itoa(128<<20), "--cpus", "1.5",
		"--env", "A=bird",
		"--user", "0:50", "--cap-add", "CAP_NET_ADMIN", "--cap-drop", "CAP_KILL", "--read-only", "--cwd", "/tmp",
		"--hostname", "limosa",
		"--mount", "type=bind,src="+dir+",dst=/vol,options=rbind:ro",
		"--mount", "type=bind,src="+filepath.Join(dir, "resolv.conf")+",dst=/etc/resolv.conf,options=rbind:rw")...)
	if got.code != 0 || got.errs != "" {
		t.Errorf("exit code %d, stderr %q", got.code, got.errs)
	}
	said := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(got.out), "\n") {
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Error(line)
		}
		said[key] = value
	}
	for key, want := range map[string]string{
		"env": "bird", "user": "0:50", "cwd": "/tmp", "host": "limosa", "resolv": "nameserver 192.0.2.1",
		"mode": "640:0", "file": "of the host", "cpus": "2", // the quota rounded up
	} {
		if said[key] != want {
			t.Errorf("%s is %q, want %q", key, said[key], want)
		}
	}
	// The limit and 128 MiB for the guest's kernel, which tells the rest.
	if kib, err := strconv.Atoi(said["memory"]); err != nil || kib < 192<<10 || kib > 256<<10 {
		t.Errorf("the guest sees %q KiB of RAM: %v", said["memory"], err)
	}
	caps, err := strconv.ParseUint(said["bounding"], 16, 64)
	if err != nil || caps&(1<<unix.CAP_NET_ADMIN) == 0 || caps&(1<<unix.CAP_KILL) != 0 || caps&(1<<unix.CAP_CHOWN) == 0 {
		t.Errorf("capabilities %#x: %v", caps, err)
	}
}

// A limit holds in the guest, its victim is told as such, and a volume that is a copy
// stays one.
func testOOM(t *testing.T, n *harness.Node, dir string) {
	events := watchEvents(t, n)
	got := ctr(t, n, nil, append(runArgs("--memory-limit", strconv.Itoa(32<<20), "--annotation", "godwit.dev/volumes=copy",
		"--mount", "type=bind,src="+dir+",dst=/vol,options=rbind:rw"),
		images.Busybox, "oom", "sh", "-c", "cat /vol/file; echo guest >/vol/file; cat /vol/file; exec tail /dev/zero")...)
	got.want(t, result{"of the host\nguest\n", "", 137})
	if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "of the host\n" {
		t.Errorf("the host's file: %q, %v", data, err)
	}
	checkEvents(t, events, "oom", "/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit", "/tasks/delete")
}
