package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestParseStart(t *testing.T) {
	args := []string{"-namespace", "ns", "-address", "/c.sock", "-publish-binary", "/c", "-id", "vm", "start"}
	dir := "/short"
	mine, err := proto.Marshal(&bootapi.BootstrapParams{InstanceID: "vm", SocketDir: &dir})
	if err != nil {
		t.Fatal(err)
	}
	other, err := proto.Marshal(&bootapi.BootstrapParams{InstanceID: "another", SocketDir: &dir})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stdin string
		dir   string
	}{
		"parameters of this instance": {string(mine), dir},
		"of another":                  {string(other), "/run/containerd/s"},
		"nothing":                     {"", "/run/containerd/s"},
		"what is no message":          {"\xff\xff", "/run/containerd/s"},
	} {
		b, err := parseStart(args, strings.NewReader(c.stdin))
		if err != nil || b.namespace != "ns" || b.id != "vm" || b.address != "/c.sock" || b.socketDir != c.dir || b.debug {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	if _, err := parseStart([]string{"-id", "vm", "start"}, strings.NewReader("")); err == nil {
		t.Error("start without a namespace")
	}
}

// The answer is what containerd 2.2 reads, and holds for 2.4 which mounts to leave.
func TestAnswer(t *testing.T) {
	var out bytes.Buffer
	if err := answer(&out, "unix:///s/x"); err != nil {
		t.Fatal(err)
	}
	if proto.Unmarshal(out.Bytes(), &bootapi.BootstrapResult{}) == nil {
		t.Error("the answer parses as a message: a daemon would not look for JSON")
	}
	var old struct {
		Version           int
		Address, Protocol string
	}
	if err := json.Unmarshal(out.Bytes(), &old); err != nil || old.Version != 3 || old.Address != "unix:///s/x" ||
		old.Protocol != "ttrpc" {
		t.Errorf("answer %s: %+v, %v", out.String(), old, err)
	}
	var full bootapi.BootstrapResult
	if err := json.Unmarshal(out.Bytes(), &full); err != nil {
		t.Fatal(err)
	}
	found, err := full.FindExtension(&types.MountCapabilities{})
	if !found || err != nil {
		t.Errorf("mount capabilities: %v, %v", found, err)
	}
}

// The options of the runtime handler are noted where no config.json is: the sandbox API does not bring them again.
func TestKeepOptions(t *testing.T) {
	t.Chdir(t.TempDir())
	options, err := anypb.New(&runtimeoptions.Options{ConfigPath: "/etc/godwit.toml"})
	if err != nil {
		t.Fatal(err)
	}
	told := &bootapi.BootstrapParams{InstanceID: "vm"}
	if err := told.AddExtension(options); err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseStart([]string{"-namespace", "ns", "-id", "vm"}, bytes.NewReader(data))
	if err != nil || !proto.Equal(b.options, options) {
		t.Fatalf("options are %v, %v", b, err)
	}
	if err := os.WriteFile("config.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kept := func(want bool) {
		t.Helper()
		if err := keepOptions(b.options); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("godwit-options"); (err == nil) != want {
			t.Errorf("options are noted: %v, want %t", err, want)
		}
	}
	kept(false)
	if err := os.Remove("config.json"); err != nil {
		t.Fatal(err)
	}
	kept(true)
}

// A start that fails leaves no socket, neither the one for debugging.
func TestStartFails(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, err := os.MkdirTemp("", "s") // a socket's path is short: unix(7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	told, err := proto.Marshal(&bootapi.BootstrapParams{InstanceID: "vm", SocketDir: &dir})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 1<<18) // more than the kernel gives a process as one argument
	var out bytes.Buffer
	err = Start(t.Context(), []string{"-namespace", "ns", "-id", "vm", "-address", long, "-debug", "start"},
		bytes.NewReader(told), &out)
	if !errors.Is(err, unix.E2BIG) || out.Len() > 0 {
		t.Errorf("start = %v, %q", err, &out)
	}
	left, err := os.ReadDir(dir)
	if len(left) > 0 || err != nil {
		t.Errorf("left are %v, %v", left, err)
	}
}
