//go:build integration

package install

import (
	"archive/tar"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// programsDir is where the image has the programs.
const programsDir = "/opt/godwit/usr/local/bin/"

// layoutOf is what `make image` has built, and its images by architecture.
func layoutOf(t *testing.T, top string) (path layout.Path, byArch map[string]v1.Image) {
	t.Helper()
	path, err := layout.FromPath(filepath.Join(top, "out", "image"))
	if err != nil {
		t.Fatalf("out/image is no OCI layout (make image): %v", err)
	}
	all, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(images); err != nil {
		t.Errorf("the index of the images is not sound: %v", err)
	}
	each, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	byArch = map[string]v1.Image{}
	for _, d := range each.Manifests {
		if byArch[d.Platform.Architecture], err = images.Image(d.Digest); err != nil {
			t.Fatal(err)
		}
	}
	return path, byArch
}

// unpacked is the root file system of an image.
func unpacked(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	in := mutate.Extract(img)
	defer in.Close()
	for files := tar.NewReader(in); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path, mode := filepath.Join(dir, h.Name), h.FileInfo().Mode()
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, mode.Perm())
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var data []byte
			if data, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(path, data, mode.Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sums are the files of a tree, with the hash of each.
func sums(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	all := map[string][sha256.Size]byte{}
	for _, name := range tree(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = sha256.Sum256(data)
	}
	return all
}

// Two images of one tree are the same, bit by bit. Each architecture has programs of its own, and those of this machine
// run without anything else. The list of parts refers to its image.
func TestImage(t *testing.T) {
	top, _ := built(t)
	again := filepath.Join(t.TempDir(), "image")
	command(t, top, "tools/image.sh", again)
	if d := cmp.Diff(sums(t, filepath.Join(top, "out", "image")), sums(t, again)); d != "" {
		t.Errorf("two of one tree differ (-first +second):\n%s", d)
	}
	path, images := layoutOf(t, top)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := unpacked(t, images[arch])
		for _, name := range programs {
			f, err := elf.Open(filepath.Join(dir, programsDir, name))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machine {
				t.Errorf("%s of %s is for %s", name, arch, f.Machine)
			}
			_ = f.Close()
		}
		if _, err := os.Stat(filepath.Join(dir, "opt/godwit/usr/local/share/godwit/vmlinuz")); (err == nil) != (arch ==
			"amd64") {
			t.Errorf("a guest for %s: %v", arch, err)
		}
		if arch == "amd64" {
			if out := command(t, "", "chroot", dir, programsDir+"godwitd", "-version"); !strings.HasPrefix(out, "godwitd ") {
				t.Errorf("godwitd -version: %s", out)
			}
		}
		digest, err := images[arch].Digest()
		if err != nil {
			t.Fatal(err)
		}
		if !referred(t, path, digest) {
			t.Errorf("no list of parts refers to the image of %s", arch)
		}
	}
}

// The packages for arm64 have programs of that architecture, no guest, and say that they were never run.
func TestPackagesForARM64(t *testing.T) {
	top, _ := built(t)
	for pattern, read := range map[string][2]string{
		"godwit_*_arm64.deb":   {`dpkg-deb -f "$1" Architecture`, `dpkg-deb -x "$1" .`},
		"godwit-*.aarch64.rpm": {`rpm -qp --qf '%{ARCH}\n' "$1"`, `rpm2cpio "$1" | cpio -id --quiet --no-absolute-filenames`},
	} {
		all, err := filepath.Glob(filepath.Join(top, "out", "arm64", pattern))
		if err != nil || len(all) != 1 {
			t.Fatalf("out/arm64 has %d of %s, want one (make package): %v", len(all), pattern, err)
		}
		if arch := command(t, "", "sh", "-c", read[0], "-", all[0]); arch != "arm64\n" && arch != "aarch64\n" {
			t.Errorf("%s is for %s", all[0], arch)
		}
		dir := t.TempDir()
		command(t, dir, "sh", "-c", read[1], "-", all[0])
		for _, name := range programs {
			f, err := elf.Open(filepath.Join(dir, "usr/bin", name))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != elf.EM_AARCH64 {
				t.Errorf("%s of %s is for %s", name, all[0], f.Machine)
			}
			_ = f.Close()
		}
		for name, there := range map[string]bool{"usr/share/godwit/vmlinuz": false, "usr/share/godwit/initramfs": false,
			"usr/share/doc/godwit/NOT-RUN-ON-ARM64": true, "usr/share/doc/godwit/copyright": true} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
				t.Errorf("%s: %s: %v", all[0], name, err)
			}
		}
	}
}

// referred looks for a list of parts whose subject is the image.
func referred(t *testing.T, path layout.Path, digest v1.Hash) bool {
	t.Helper()
	all, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range manifest.Manifests[1:] {
		list, err := all.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := list.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject != nil && m.Subject.Digest == digest && m.Layers[0].MediaType == "application/vnd.cyclonedx+json" {
			return true
		}
	}
	return false
}

// copyOfHost is a root that begins as this machine is, in a machine of its own. What containerd keeps has no overlay
// below it.
const copyOfHost = `
	mkdir /mnt/upper /mnt/work
	mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
	mkdir -p /mnt/root/var/lib/containerd /mnt/root/var/lib/godwit
	mount -t tmpfs tmpfs /mnt/root/var/lib/containerd`

// daemonSet is how a node of Kubernetes would run the image: with the host's pids and network, privileged, and with
// those of the node's directories that docs/how-to/install.md names.
const daemonSet = `ctr run -d --privileged --net-host --rootfs-propagation rshared --with-ns pid:/proc/1/ns/pid ` +
	`--mount type=bind,src=/run,dst=/run,options=rbind:rshared --mount type=bind,src=/usr,dst=/usr,options=rbind:ro ` +
	`--mount type=bind,src=/etc/godwit,dst=/etc/godwit,options=rbind:ro ` +
	`--mount type=bind,src=/dev,dst=/dev,options=rbind:rw ` +
	`--mount type=bind,src=/var/lib/godwit,dst=/var/lib/godwit,options=rbind:rw IMAGE godwitd`

// TestImageOnNode shows that godwitd works as the image on a node: its first container puts the shim there, its second
// one is the daemon, doctor finds that VMs run, and one sleeps and wakes.
func TestImageOnNode(t *testing.T) {
	top, _ := built(t)
	_, images := layoutOf(t, top)
	if images["amd64"] == nil {
		t.Fatal("there is no image for amd64")
	}
	n := boot(t, "image", copyOfHost)
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		n.run(t, "install", "-m", "755", filepath.Join(top, "bin/tools", program), "/usr/local/bin/")
	}
	n.run(t, "sh", "-c", "mount --make-rshared /run; containerd >/var/log/containerd.log 2>&1 &")
	n.run(t, "sh", "-c", "for i in $(seq 600); do ctr version && exit; sleep 0.1; done; exit 1")
	n.run(t, "sh", "-c", "tar -C "+filepath.Join(top, "out/image")+
		" -cf - . | ctr images import --local --platform amd64 -")
	image := strings.TrimSpace(n.run(t, "sh", "-c", "ctr images ls -q 2>/dev/null | grep godwitd:"))
	said := n.run(t, "sh", "-c", "ctr run --rm --mount type=bind,src=/,dst=/node,options=rbind:rw "+image+" install "+
		programsDir+"godwitd -install /node")
	if !strings.Contains(said, "installed /usr/local/bin/containerd-shim-godwit-v1\n") {
		t.Fatalf("the first container says: %s", said)
	}
	n.run(t, "sh", "-c", strings.Replace(daemonSet, "IMAGE", image, 1))
	n.run(t, "sh", "-c", "for i in $(seq 600); do godwit ps && exit; sleep 0.1; done; exit 1")
	for _, line := range []string{
		// In the container. runc exec would look for its root where a node that is no chroot has it.
		"nsenter --target $(pidof -s godwitd) --mount --root --wd=/ " + programsDir + "godwit doctor",
		"godwit doctor", "mountpoint /run/godwit/ram",
		"godwit run -d --name web " + busybox + " sleep 1000000", "godwit hibernate web", "godwit wake web",
		"godwit exec web true",
	} {
		t.Logf("$ %s\n%s", line, n.run(t, "sh", "-c", line))
	}
}
