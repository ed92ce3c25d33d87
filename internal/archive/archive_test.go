package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// member of an archive that a test writes.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, content}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hardLink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}, ""}
}

func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func stream(t testing.TB, entries ...entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// place is a directory to unpack into, next to one that must stay as it is.
type place struct {
	in, out string
	root    *os.Root
}

func newPlace(t testing.TB) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{in: filepath.Join(dir, "in"), out: filepath.Join(dir, "out")}
	for _, d := range []string{p.in, p.out} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.out, "secret"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(p.in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	p.root = root
	return p
}

// untouched fails the test if anything outside has changed, or if a file that is not whole stays.
func (p *place) untouched(t testing.TB) {
	t.Helper()
	p.outside(t)
	_ = filepath.WalkDir(p.in, func(name string, _ os.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(name), partialPrefix) {
			t.Fatalf("%s stays", name)
		}
		return nil
	})
}

// outside fails the test if anything outside has changed.
func (p *place) outside(t testing.TB) {
	t.Helper()
	for dir, want := range map[string]int{p.out: 1, filepath.Dir(p.in): 2} {
		if all, err := os.ReadDir(dir); err != nil || len(all) != want {
			t.Fatalf("%s has %v, %v", dir, all, err)
		}
	}
	secret, err := os.ReadFile(filepath.Join(p.out, "secret"))
	if err != nil || string(secret) != "mine" {
		t.Fatalf("the file outside is %q, %v", secret, err)
	}
	info, err := os.Stat(filepath.Join(p.out, "secret"))
	if err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Fatalf("the file outside: %v, %v", info, err)
	}
}

// A tree that was packed is the same after it was unpacked: files, modes, links, and an empty directory.
func TestRoundTrip(t *testing.T) {
	from, to := newPlace(t), newPlace(t)
	write := func(name, content string, mode os.FileMode) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from.in, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from.in, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("d/a", "one", 0o640)
	write("d/b/run", "#!/bin/sh\n", 0o755)
	if err := errors.Join(os.Mkdir(filepath.Join(from.in, "d/empty"), 0o500),
		os.Symlink("/etc/passwd", filepath.Join(from.in, "d/link")),
		unix.Mkfifo(filepath.Join(from.in, "d/pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	sent, err := Pack(&b, from.root, "d", "e")
	if err != nil || sent.Files != 2 || sent.Bytes != 13 || sent.Skipped != 1 || sent.Names[0] != "d/pipe" {
		t.Fatalf("%+v, %v", sent, err)
	}
	got, err := (&Unpacker{Root: to.root, Under: "e"}).Unpack(&b)
	if err != nil || got.Files != 2 || got.Bytes != 13 {
		t.Fatalf("%+v, %v", got, err)
	}
	if data, err := os.ReadFile(filepath.Join(to.in, "e/a")); err != nil || string(data) != "one" {
		t.Fatalf("%q, %v", data, err)
	}
	for name, mode := range map[string]os.FileMode{"e/a": 0o640, "e/b/run": 0o755, "e/empty": 0o500 | os.ModeDir} {
		if info, err := os.Lstat(filepath.Join(to.in, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(to.in, "e/link")); err != nil || link != "/etc/passwd" {
		t.Errorf("link %q, %v", link, err)
	}
}

// No hostile archive writes outside of the directory, or next to what was asked for; each ends with
// an error of its class.
func TestHostileArchives(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		class   error
	}{
		"dot dot":            {[]entry{file("a/../../out/secret", "x")}, errdefs.ErrInvalidArgument},
		"absolute":           {[]entry{file("/a/x", "x")}, errdefs.ErrInvalidArgument},
		"another name":       {[]entry{file("b", "x")}, errdefs.ErrInvalidArgument},
		"a name's beginning": {[]entry{file("ab", "x")}, errdefs.ErrInvalidArgument},
		"dot":                {[]entry{file("./.bashrc", "x")}, errdefs.ErrInvalidArgument},
		"link to outside":    {[]entry{symlink("a", "../out"), file("a/secret", "x")}, errdefs.ErrFailedPrecondition},
		"link to absolute":   {[]entry{symlink("a", "/etc"), file("a/x", "x")}, errdefs.ErrFailedPrecondition},
		"link to beside":     {[]entry{symlink("a", "other"), file("a/x", "x")}, errdefs.ErrFailedPrecondition},
		"link deeper": {[]entry{dir("a"), symlink("a/l", "../other"),
			file("a/l/x", "x")}, errdefs.ErrFailedPrecondition},
		"directory on link": {[]entry{symlink("a", "other"), dir("a")}, errdefs.ErrFailedPrecondition},
		"hard link out":     {[]entry{hardLink("a", "../out/secret")}, errdefs.ErrInvalidArgument},
		"hard link beside":  {[]entry{hardLink("a", "other/mine")}, errdefs.ErrInvalidArgument},
		"hard link by a link": {[]entry{dir("a"), symlink("a/l", "../other"), hardLink("a/h", "a/l/mine")},
			errdefs.ErrFailedPrecondition},
		"long name":         {[]entry{file("a/"+strings.Repeat("x/", maxName)+"y", "x")}, errdefs.ErrInvalidArgument},
		"file on directory": {[]entry{dir("a"), file("a", "x")}, errdefs.ErrFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			if err := errors.Join(os.Mkdir(filepath.Join(p.in, "other"), 0o755),
				os.WriteFile(filepath.Join(p.in, "other/mine"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			_, err := (&Unpacker{Root: p.root, Under: "a"}).Unpack(stream(t, c.entries...))
			if !errors.Is(err, c.class) {
				t.Fatalf("%v, want class %v", err, c.class)
			}
			p.untouched(t)
			if all, err := os.ReadDir(filepath.Join(p.in, "other")); err != nil || len(all) != 1 {
				t.Fatalf("beside: %v, %v", all, err)
			}
			if all, _ := os.ReadDir(p.in); len(all) > 2 {
				t.Fatalf("in the directory: %v", all)
			}
		})
	}
}

// A link that lies in the directory of the receiver leads nowhere, unless it may.
func TestLinksOfTheReceiver(t *testing.T) {
	p := newPlace(t)
	if err := errors.Join(os.Symlink("../out", filepath.Join(p.in, "leaves")),
		os.Symlink("real", filepath.Join(p.in, "stays")), os.Mkdir(filepath.Join(p.in, "real"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		follow, fine bool
	}{{"leaves/x", false, false}, {"leaves/x", true, false}, {"stays/x", false, false}, {"stays/x", true, true}} {
		_, err := (&Unpacker{Root: p.root, Follow: c.follow}).Unpack(stream(t, file(c.name, "x")))
		if (err == nil) != c.fine {
			t.Errorf("%s, follow %v: %v", c.name, c.follow, err)
		}
		p.untouched(t)
	}
	// A file takes the place of a link, and is not written through it.
	if err := os.Symlink("../out/secret", filepath.Join(p.in, "f")); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Unpacker{Root: p.root, Follow: true}).Unpack(stream(t, file("f", "x"))); err != nil {
		t.Fatal(err)
	}
	p.untouched(t)
}

// Devices and pipes are skipped and named; the bits that give rights are taken off.
func TestSpecialFiles(t *testing.T) {
	p := newPlace(t)
	got, err := (&Unpacker{Root: p.root}).Unpack(stream(t,
		entry{tar.Header{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 8}, ""},
		entry{tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, ""},
		entry{tar.Header{Name: "su", Typeflag: tar.TypeReg, Mode: 0o6755, Uid: 12, Gid: 13}, "x"}))
	if err != nil || got.Skipped != 2 || strings.Join(got.Names, " ") != "dev pipe" || got.Files != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(p.in, "su"))
	if err != nil || info.Mode() != 0o755 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
		t.Fatalf("%v, %v", info, err)
	}
}

// A file that cannot fit is refused before it is written, and so is a member that stands for
// holes. An archive that ends early leaves nothing of its last file.
func TestSizes(t *testing.T) {
	p := newPlace(t)
	var huge bytes.Buffer
	if err := tar.NewWriter(&huge).WriteHeader(&tar.Header{Name: "huge", Typeflag: tar.TypeReg, Size: 1 << 60,
		Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Unpacker{Root: p.root}).Unpack(&huge); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "make room") {
		t.Errorf("huge: %v", err)
	}
	for _, kind := range []byte{tar.TypeReg, tar.TypeCont, 'Z'} { // the last would be skipped
		if _, err := (&Unpacker{Root: p.root}).Unpack(bytes.NewReader(sparse(kind))); !errdefs.IsInvalidArgument(err) ||
			!strings.Contains(err.Error(), "sparse") {
			t.Errorf("sparse %q: %v", kind, err)
		}
	}
	whole := stream(t, file("first", "x"), file("cut", strings.Repeat("y", 2000))).Bytes()
	if _, err := (&Unpacker{Root: p.root}).Unpack(bytes.NewReader(whole[:2500])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	if _, err := (&Unpacker{Root: p.root}).Unpack(strings.NewReader(strings.Repeat("no archive ", 99))); !errdefs.
		IsInvalidArgument(err) {
		t.Errorf("no archive: %v", err)
	}
	if all, _ := os.ReadDir(p.in); len(all) != 1 || all[0].Name() != "first" {
		t.Errorf("it holds %v", all)
	}
	p.untouched(t)
}

// sparse is an archive of GNU tar's format 1.0, whose member of few bytes stands for 4 EiB. The
// library's writer makes none: its keys are put in afterwards, in the place of others as long.
func sparse(kind byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := "1\n4611686018427387903\n1\n"
	content += strings.Repeat("\x00", 512-len(content)) + "x"
	_ = w.WriteHeader(&tar.Header{Name: "GNUSparseFile.0/s", Typeflag: kind, Size: int64(len(content)),
		Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{"XYZ.sparse.major": "1", "XYZ.sparse.minor": "0",
			"XYZ.sparse.name": "s", "XYZ.sparse.realsize": "4611686018427387904"}})
	_, _ = io.WriteString(w, content)
	_ = w.Close()
	return bytes.ReplaceAll(b.Bytes(), []byte("XYZ.sparse."), []byte("GNU.sparse."))
}

// FuzzUnpack: no stream writes outside of the directory, or panics, whatever it holds.
func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, dir("a"), file("a/x", "x"), symlink("a/l", "x"), hardLink("a/h", "a/x")).Bytes(), "a", true)
	f.Add(stream(f, symlink("a", "../out"), file("a/secret", "x")).Bytes(), "", true)
	f.Add(stream(f, symlink("a", "l"), file("a/../../out/secret", "x")).Bytes(), "a", false)
	f.Add(sparse(tar.TypeReg), "", false)
	f.Fuzz(func(t *testing.T, data []byte, under string, follow bool) {
		p := newPlace(t)
		if err := os.Symlink("../out", filepath.Join(p.in, "l")); err != nil {
			t.Fatal(err)
		}
		_, _ = (&Unpacker{Root: p.root, Under: under, Follow: follow}).Unpack(bytes.NewReader(data))
		p.untouched(t)
	})
}
