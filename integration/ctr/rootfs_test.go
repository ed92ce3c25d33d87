//go:build integration

package ctr

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

const treeImage = "godwit.test/tree:1"

// outside are the names that the runtime, not the image, fills.
var outside = []string{"proc", "sys", "dev", "run"}

// The tree that the guest lists is the tree that the snapshotter unpacked, with all that an image can hold. Two VMs of
// an image share its block file.
func TestRootfs(t *testing.T) {
	h := harness.New(t, harness.Options{})
	n := h.Node(0)
	n.CheckClean(t)
	lister, err := h.Build(t.Context(), "treelist")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Dir, "tree.tar")
	if err := images.Write(file, tree(t, lister)); err != nil {
		t.Fatal(err)
	}
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		t.Run(snapshotter, func(t *testing.T) {
			if err := n.Import(t.Context(), file, snapshotter); err != nil {
				t.Fatal(err)
			}
			want := onHost(t, n, lister, snapshotter)
			checkTree(t, want)
			var both []*command
			for _, id := range []string{"one", "two"} {
				args := append(runArgs("--snapshotter", snapshotter), treeImage, snapshotter+id, "/bin/treelist", "/")
				both = append(both, start(t, n, nil, append(args, outside...)...))
			}
			for _, c := range both {
				got := c.wait(t)
				got.want(t, result{out: got.out})
				if diff := cmp.Diff(lines(want), lines(got.out)); diff != "" {
					t.Errorf("the guest's tree (+) is not the host's (-):\n%s", diff)
				}
			}
		})
	}
	disks, err := os.ReadDir(filepath.Join(n.Dir, "lib", "cache", "verified"))
	if err != nil || len(disks) != 1 {
		t.Errorf("the cache holds %v, %v; want the one disk that four VMs needed", disks, err)
	}
}

// onHost lists the tree as containerd unpacked it.
func onHost(t *testing.T, n *harness.Node, lister, snapshotter string) string {
	t.Helper()
	target := filepath.Join(n.Dir, "tree-"+snapshotter)
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	n.Ctr(t, "images", "mount", "--snapshotter", snapshotter, treeImage, target)
	defer n.Ctr(t, "images", "unmount", "--snapshotter", snapshotter, "--rm", target)
	out, err := n.Run(t.Context(), lister, append([]string{target}, outside...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// lines without the root itself, which is the writable layer's on both sides, and
// without the mount points that the runtime makes.
func lines(list string) []string {
	var all []string
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		if !strings.HasPrefix(line, `"." `) {
			all = append(all, line)
		}
	}
	return all
}

// checkTree makes sure that the comparison is about something.
func checkTree(t *testing.T, list string) {
	t.Helper()
	for _, part := range []string{"security.capability=", "user.godwit=", "links=2", "device=1:3", "mode=104755",
		"mode=041777", "owner=1000:50", `to="../nowhere"`, "mtime=981173106.", "mode=010640"} {
		if !strings.Contains(list, part) {
			t.Errorf("the unpacked tree has no %s", part)
		}
	}
	if strings.Contains(list, "removed") {
		t.Error("the unpacked tree has what the second layer removed")
	}
}

func tree(t *testing.T, lister string) images.Image {
	t.Helper()
	program, err := os.ReadFile(lister)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	dir := func(name string, mode fs.FileMode) images.File {
		return images.File{Name: name, Mode: fs.ModeDir | mode}
	}
	base := []images.File{
		dir("bin", 0o755), dir("dev", 0o755), dir("proc", 0o555), dir("sys", 0o555), dir("run", 0o755), dir("etc", 0o755),
		{Name: "bin/treelist", Mode: 0o755, Data: program},
		dir("tree", 0o750), dir("tree/sticky", fs.ModeSticky|0o777), dir("tree/empty", 0o700), dir("tree/removed", 0o755),
		{Name: "tree/removed/file", Mode: 0o644},
		{Name: "tree/capable", Mode: 0o755, Data: []byte("x"), Xattrs: map[string]string{
			"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			"user.godwit":         "limosa",
		}},
		{Name: "tree/setuid", Mode: fs.ModeSetuid | 0o755, Data: []byte("suid"), UID: 1000, GID: 50, ModTime: old},
		{Name: "tree/linked", Mode: 0o600, Data: []byte("two names")},
		{Name: "tree/same", Mode: 0o600, Link: "tree/linked"},
		{Name: "tree/symbolic", Mode: fs.ModeSymlink | 0o777, Target: "../nowhere", ModTime: old},
		{Name: "tree/null", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 3},
		{Name: "tree/fifo", Mode: fs.ModeNamedPipe | 0o640},
		{Name: "tree/zeros", Mode: 0o644, Data: make([]byte, 4<<20)},
		{Name: "tree/" + strings.Repeat("n", 200), Mode: 0o644, Data: []byte("long")},
	}
	second := []images.File{dir("tree", 0o750), {Name: "tree/.wh.removed", Mode: 0o644},
		{Name: "tree/second", Mode: 0o444, Data: []byte("2")}}
	return images.Image{Name: treeImage, Layers: [][]images.File{base, second},
		Config: v1.Config{Cmd: []string{"/bin/treelist", "/"}}}
}
