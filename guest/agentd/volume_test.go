package agentd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/stage"
)

// newVolume is one in a directory, which was made.
func newVolume(t *testing.T) (*Service, *volume) {
	t.Helper()
	v := &volume{id: "v", dir: t.TempDir(), mode: 0o750, made: true}
	if err := os.Mkdir(v.data(), 0o750); err != nil {
		t.Fatal(err)
	}
	s := barring()
	s.volumes["v"] = v
	return s, v
}

// list shows a directory: the path of each file or link, and what it holds.
func list(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, dir+"/")
		switch {
		case err != nil || d.IsDir():
			return err
		case d.Type() == os.ModeSymlink:
			to, err := os.Readlink(path)
			all[name] = "-> " + to
			return err
		}
		data, err := os.ReadFile(path)
		all[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func file(path, data string) *agentv1.File {
	return &agentv1.File{
		Path: path, Mode: 0o644, Data: []byte(data), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid()),
	}
}

func link(path, to string) *agentv1.File {
	return &agentv1.File{
		Path: path, Mode: unix.S_IFLNK | 0o777, Link: to, Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid()),
	}
}

func TestVolumeHoldsItsRevision(t *testing.T) {
	s, v := newVolume(t)
	push := func(revision uint64, part uint32, last bool, entries ...*agentv1.File) error {
		_, err := s.SyncVolume(t.Context(), &agentv1.SyncVolumeRequest{
			Volume: "v", Revision: revision, Part: part, Last: last, Entries: entries,
		})
		return err
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := map[string]string{"..1/a": "1", "..data": "-> ..1", "a": "-> ..data/a", "plain": "p", "sub/x": "x"}
	first := []*agentv1.File{file("..1/a", "1"), link("..data", "..1"), link("a", "..data/a"), file("plain", "p"),
		file("sub/x", "x")}
	if err := push(1, 0, true, first...); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(old, list(t, v.data())); d != "" {
		t.Fatal(d)
	}
	if err := push(2, 0, false, file("..2/a", "2")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(old, list(t, v.data())); d != "" {
		t.Errorf("of a revision that is not whole is seen: %s", d)
	}
	if err := push(2, 2, true, link("..data", "..2")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a revision of which a message is missing: %v", err)
	}
	if err := push(1, 0, true); err != nil || v.revision != 1 {
		t.Errorf("an old revision: %v", err)
	}
	// What the container has made is in the way of the new revision, or leads out of the volume.
	for _, e := range []error{
		os.Remove(filepath.Join(v.data(), "plain")), os.MkdirAll(filepath.Join(v.data(), "plain/deep"), 0o755),
		os.RemoveAll(filepath.Join(v.data(), "sub")), os.Symlink(filepath.Dir(outside), filepath.Join(v.data(), "sub")),
		os.Symlink(outside, filepath.Join(v.data(), "own")),
	} {
		if e != nil {
			t.Fatal(e)
		}
	}
	err := push(2, 1, true, link("..data", "..2"), link("a", "..data/a"), file("plain", "q"), file("sub/y", "y"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"..2/a": "2", "..data": "-> ..2", "a": "-> ..data/a", "plain": "q", "sub/y": "y"}
	if d := cmp.Diff(want, list(t, v.data())); d != "" {
		t.Error(d)
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "kept" {
		t.Errorf("a file outside: %q, %v", data, err)
	}
	if _, err := os.Stat(v.incoming()); !os.IsNotExist(err) {
		t.Errorf("what came is there still: %v", err)
	}
}

// A file that has not changed stays the same one: who watches it is not woken.
func TestVolumeKeepsEqualFiles(t *testing.T) {
	s, v := newVolume(t)
	inode := func() uint64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(v.data(), "a"), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	var before uint64
	for revision, data := range []string{"same", "same", "else"} {
		_, err := s.SyncVolume(t.Context(), &agentv1.SyncVolumeRequest{
			Volume: "v", Revision: uint64(revision + 1), Last: true, Entries: []*agentv1.File{file("a", data)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if now := inode(); revision > 0 && (now == before) != (data == "same") {
			t.Errorf("revision %d: inode %d after %d", revision+1, now, before)
		}
		before = inode()
	}
}

// The last message of a revision that failed half-way can be repeated alone.
func TestVolumeGoesOnAfterAFailure(t *testing.T) {
	s, v := newVolume(t)
	last := &agentv1.SyncVolumeRequest{
		Volume: "v", Revision: 1, Part: 1, Last: true, Entries: []*agentv1.File{file("b", "b")},
	}
	begin := &agentv1.SyncVolumeRequest{Volume: "v", Revision: 1, Entries: []*agentv1.File{file("a", "a")}}
	if _, err := s.SyncVolume(t.Context(), begin); err != nil {
		t.Fatal(err)
	}
	if err := v.write(last.Entries); err != nil {
		t.Fatal(err)
	}
	if err := v.publish(); err != nil { // as an attempt that then failed
		t.Fatal(err)
	}
	if _, err := s.SyncVolume(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"a": "a", "b": "b"}, list(t, v.data())); d != "" {
		t.Error(d)
	}
}

// A mount that lies below the target of a volume comes after it.
func TestVolumesAmongMounts(t *testing.T) {
	s, v := newVolume(t)
	mounts := []stage.Mount{{Target: "/proc"}, {Target: "/data/tmp"}, {Target: "/database"}}
	got, err := s.withVolumes(mounts, []*agentv1.VolumeMount{
		{Volume: "v", Target: "/data/"}, {Volume: "v", Target: "/other", Path: "a/../../b", Options: []string{"ro"}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range got {
		order = append(order, m.Target)
	}
	if want := "[/proc /data/ /data/tmp /database /other]"; fmt.Sprint(order) != want {
		t.Errorf("got %v, want %s", order, want)
	}
	if m := got[4]; m.From != v.data() || m.Source != "/b" || fmt.Sprint(m.Options) != "[bind ro]" {
		t.Errorf("%+v", m)
	}
	if fi, err := os.Stat(filepath.Join(v.data(), "b")); err != nil || fi.Mode().Perm() != 0o750 {
		t.Errorf("the path was not made as the volume is: %v, %v", fi, err)
	}
	if _, err := s.withVolumes(nil, []*agentv1.VolumeMount{{Volume: "w"}}, nil); !errdefs.IsNotFound(err) {
		t.Errorf("a volume that is not there: %v", err)
	}
}

func TestContainerIDs(t *testing.T) {
	for id, good := range map[string]bool{
		"c1": true, "web-0": true, "": false, "pod": false, "..": false, "a/b": false, "c 1": false,
		strings.Repeat("c", maxID+1): false,
	} {
		if err := checkID("container", id); (err == nil) != good || !good && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// Without a pod there are no containers but one; its calls are what they were.
func TestGuestWithoutPod(t *testing.T) {
	s := barring()
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"add": func() error {
			_, err := s.AddContainer(ctx, &agentv1.AddContainerRequest{Container: "c1", Setup: &agentv1.SetupRequest{}})
			return err
		},
		"volume": func() error {
			_, err := s.AddVolume(ctx, &agentv1.AddVolumeRequest{Id: "v", Kind: "disk"})
			return err
		},
		"start": func() error {
			_, err := s.Start(ctx, &agentv1.StartRequest{Id: "c1", Container: "c1"})
			return err
		},
	} {
		if err := call(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"remove": func() error {
			_, err := s.RemoveContainer(ctx, &agentv1.RemoveContainerRequest{Container: "c1"})
			return err
		},
		"stats": func() error { _, err := s.Stats(ctx, &agentv1.StatsRequest{Container: "c1"}); return err },
		"read back": func() error {
			_, err := s.ReadBack(ctx, &agentv1.ReadBackRequest{Container: "c1", Path: "/x"})
			return err
		},
	} {
		if err := call(); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
