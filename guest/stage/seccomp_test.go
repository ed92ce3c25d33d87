package stage

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	compiler "godwit.dev/godwit/guest/client/seccomp"
)

const confinedEnv = "GODWIT_TEST_CONFINED"

// The kernel takes the filter, what it forbids fails, and what it permits works: as
// told by a process that has it.
func TestConfine(t *testing.T) {
	if os.Getenv(confinedEnv) != "" {
		confined()
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestConfine$")
	cmd.Env = append(os.Environ(), confinedEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const want = "mount: operation not permitted\nclone3: function not implemented\nrename: file too large\nuname: <nil>\n"
	if !strings.HasSuffix(string(out), want) {
		t.Errorf("%s\nwant %s", out, want)
	}
}

// confined ends the process.
func confined() {
	runtime.LockOSThread()
	profile := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	number := uint(unix.EFBIG)
	profile.Syscalls = append([]specs.LinuxSyscall{{Names: []string{"renameat2"}, Action: specs.ActErrno,
		ErrnoRet: &number}}, profile.Syscalls...)
	f, err := compiler.Compile(profile)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	id := &identity{spec: &specs.Process{NoNewPrivileges: true}, filter: &Seccomp{Program: f.Program, Flags: f.Flags}}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := id.confine(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _, clone3 := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	var name unix.Utsname
	fmt.Printf("mount: %v\nclone3: %v\nrename: %v\nuname: %v\n", unix.Mount("", "/nowhere", "", 0, ""), clone3,
		unix.Renameat2(unix.AT_FDCWD, "/a", unix.AT_FDCWD, "/b", 0), unix.Uname(&name))
	os.Exit(0)
}

func TestConfineRefusesNoFilter(t *testing.T) {
	for _, size := range []int{0, 7, 8 * 5000} {
		id := &identity{spec: &specs.Process{}, filter: &Seccomp{Program: make([]byte, size)}}
		if err := id.confine(); err == nil {
			t.Errorf("a filter of %d bytes is taken", size)
		}
	}
}

func TestCopyOptions(t *testing.T) {
	for _, tt := range []struct {
		given    string
		kept     string
		readOnly bool
		fails    string
	}{
		{"rbind,rprivate,rw", "", false, ""},
		{"rbind,ro", "ro", true, ""},
		{"rbind,rro,rnosuid", "ro,nosuid", true, ""},
		{"bind,ro,rw,noexec", "ro,rw,noexec", false, ""},
		{"rbind,shared", "shared", false, ""},
		{"rbind,sync", "", false, `"sync"`},
		{"rbind,frobnicate", "", false, `"frobnicate"`},
		{"rbind,idmap", "", false, `"idmap"`},
	} {
		kept, readOnly, err := CopyOptions("/x", strings.Split(tt.given, ","))
		if tt.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%s: %v", tt.given, err)
			}
			continue
		}
		if strings.Join(kept, ",") != tt.kept || readOnly != tt.readOnly || err != nil {
			t.Errorf("%s: %q, read-only %v, %v", tt.given, kept, readOnly, err)
		}
	}
}

func TestCheckMount(t *testing.T) {
	for _, m := range []Mount{
		{Type: "tmpfs", Target: "/x", Options: []string{"size=1m", "mode=700", "nosuid"}},
		{Type: "devpts", Target: "/x", Options: []string{"newinstance", "ptmxmode=0666"}},
		{Type: "cgroup", Target: "/x", Options: []string{"ro", "relatime"}},
	} {
		if err := CheckMount(m); err != nil {
			t.Error(err)
		}
	}
	for _, m := range []Mount{
		{Type: "tmpfs", Target: "/x", Options: []string{"sice=1m"}},
		{Type: "cgroup", Target: "/x", Options: []string{"name=systemd"}},
		{Type: "sysfs", Target: "/x", Options: []string{"uid=5"}},
		{Type: "tmpfs", Target: "/x", Options: []string{"context=y"}},
		{Type: "fuse", Target: "/x"},
	} {
		if err := CheckMount(m); err == nil || !strings.Contains(err.Error(), "/x") {
			t.Errorf("%+v is accepted: %v", m, err)
		}
	}
}
