//go:build integration

package install

import (
	"fmt"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// release is a Debian that a clean root is made of.
type release struct{ name, suite string }

var releases = []release{{"Debian 12", "bookworm"}, {"Debian 13", "trixie"}}

// mirror is the archive that this machine's apt reads Debian from.
func mirror(t *testing.T) string {
	t.Helper()
	said := command(t, "", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian",
		"Component: main")
	uri, _, _ := strings.Cut(said, "\n")
	if uri == "" {
		t.Fatal("apt of this machine names no archive of Debian, and a clean system is made of one (apt-get update)")
	}
	return uri
}

// cleanRoot makes the root file system of a release with its smallest set of packages, with two packages at hand in
// /root: ours, and a containerd. What apt needs to install them is downloaded, and no more. It is made anew each time.
func cleanRoot(t *testing.T, r release, packages ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	copyIn := "copy-in " + strings.Join(packages, " ") + " /root"
	args := []string{"--quiet", "--variant=minbase", "--skip=cleanup/apt", "--customize-hook=" + copyIn,
		`--customize-hook=chroot "$1" sh -c 'apt-get -qq install --yes --no-install-recommends --download-only /root/*.deb'`,
		r.suite, dir, fmt.Sprintf("deb %s %s main", mirror(t), r.suite)}
	command(t, "", "mmdebstrap", args...)
	return dir
}

// vendorsContainerd is what a vendor's package of containerd would be, made of the build from modules: Debian's own
// is older than what godwit needs.
func vendorsContainerd(t *testing.T, top string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "containerd.io")
	for _, d := range []string{"DEBIAN", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"containerd", "ctr"} {
		command(t, top, "cp", "bin/tools/"+program, filepath.Join(dir, "usr/bin", program))
	}
	control := "Package: containerd.io\nVersion: 2.4.2-1\nArchitecture: amd64\nMaintainer: a vendor <a@vendor.example>\n" +
		"Description: containerd\n"
	if err := os.WriteFile(filepath.Join(dir, "DEBIAN/control"), []byte(control), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "", "dpkg-deb", "--root-owner-group", "-Znone", "--build", dir)
	return dir + ".deb"
}

// boot makes a machine whose root file system mount, a script, puts on /mnt/root. It has no network but its own, and
// no service manager.
func boot(t *testing.T, name, mount string) *root {
	t.Helper()
	m := harness.NewMachine(t, name)
	inside := &root{pid: m.PID(), namespaces: []string{"--net", "--cgroup"}}
	command(t, "", "nsenter", "--target", fmt.Sprint(m.PID()), "--mount", "--pid", "--net", "sh", "-ec", `
		ip link set lo up
		mount -t tmpfs tmpfs /mnt
		mkdir /mnt/root
		`+mount+`
		mount -t proc proc /mnt/root/proc
		mount --rbind /sys /mnt/root/sys
		mount --rbind /dev /mnt/root/dev
		mount -t tmpfs -o mode=0755 tmpfs /mnt/root/run
		mount -t tmpfs -o mode=1777 tmpfs /mnt/root/tmp`)
	serveImage(t, m)
	return inside
}

// busybox is an image that the machine finds in a registry.
const busybox = "127.0.0.1:5000/busybox:1"

// serveImage has a registry on the machine's network, with one image.
func serveImage(t *testing.T, m *harness.Machine) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(t.Output(), "registry: ", 0)))
	inside := httptest.NewUnstartedServer(handler)
	err := m.Enter(func() (err error) {
		_ = inside.Listener.Close()
		inside.Listener, err = net.Listen("tcp", "127.0.0.1:5000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	inside.Start()
	t.Cleanup(inside.Close)
	outside := httptest.NewServer(handler) // where the test can reach it
	defer outside.Close()
	img, err := images.Shell()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.Replace(busybox, "127.0.0.1:5000", outside.Listener.Addr().String(), 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
}
