package changes

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// f is a member of a tar stream.
type f struct {
	name string
	kind byte // 0: a file
	text string
	link string
	mode int64
	uid  int
	time int64
}

func stream(t *testing.T, files ...f) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, one := range files {
		h := &tar.Header{Name: one.name, Typeflag: one.kind, Linkname: one.link, Size: int64(len(one.text)),
			Mode: 0o644 | one.mode, Uid: one.uid, ModTime: time.Unix(1000+one.time, 0), Format: tar.FormatPAX}
		if one.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, one.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func dir(name string) f { return f{name: name, kind: tar.TypeDir} }

// image has two layers, with whiteouts in the second one.
func image(t *testing.T) *Base {
	t.Helper()
	b := new(Base)
	for _, layer := range []*bytes.Buffer{
		stream(t, dir("etc/"), f{name: "etc/a", text: "old"}, f{name: "etc/b", text: "bb"}, dir("gone/"),
			f{name: "gone/x", text: "x"}, dir("emptied/"), f{name: "emptied/x", text: "x"},
			f{name: "dev/null", kind: tar.TypeChar}, f{name: "opt/tty", kind: tar.TypeChar}),
		stream(t, f{name: "etc/a", text: "new"}, f{name: "etc/hard", kind: tar.TypeLink, link: "etc/b"},
			f{name: ".wh.gone"}, f{name: "emptied/y", text: "y"}, f{name: "emptied/.wh..wh..opq"},
			f{name: "etc/soft", kind: tar.TypeSymlink, link: "a"}, f{name: "deep/in/tree", text: "t"}),
	} {
		if err := b.Add(layer); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// as is what a VM has that changed nothing.
func as() []f {
	return []f{dir("./"), dir("./etc/"), {name: "./etc/a", text: "new"}, {name: "./etc/b", text: "bb"},
		{name: "./etc/hard", text: "bb"}, {name: "./etc/soft", kind: tar.TypeSymlink, link: "a"}, dir("./emptied/"),
		{name: "./emptied/y", text: "y"}, dir("./deep/"), dir("./deep/in/"), {name: "./deep/in/tree", text: "t"},
		dir("./dev/"), {name: "./dev/shm", text: "of a mount"}, dir("./opt/")}
}

// but is as without one file, and with others.
func but(name string, now ...f) (all []f) {
	for _, one := range as() {
		if strings.Trim(one.name, "./") != name {
			all = append(all, one)
		}
	}
	return append(all, now...)
}

// roomy is the room of a VM that has more than a test needs.
var roomy = Room{Disk: 64 << 20}

func told(t *testing.T, b *Base, r io.Reader) (all []string, err error) {
	t.Helper()
	err = b.Compare(r, roomy, []string{"/dev", "/etc/resolv.conf"}, func(c Change) error {
		text := string(c.Kind) + " " + c.Path
		if c.Content != nil && c.Header.Typeflag == tar.TypeReg {
			data, err := io.ReadAll(c.Content)
			if err != nil {
				return err
			}
			text += " " + string(data[:min(len(data), 20)])
		}
		all = append(all, text)
		return nil
	})
	return all, err
}

// Each difference is told with the content of the VM's file, and nothing else is.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		files []f
		want  []string
	}{
		"nothing":       {as(), nil},
		"a new file":    {append(as(), f{name: "./new", text: "n"}), []string{"A /new n"}},
		"of a mount":    {append(as(), f{name: "./etc/resolv.conf", text: "n"}), nil},
		"other content": {but("etc/a", f{name: "etc/a", text: "neo"}), []string{"C /etc/a neo"}},
		"other size":    {but("etc/a", f{name: "etc/a", text: "newer"}), []string{"C /etc/a newer"}},
		"touched":       {but("etc/a", f{name: "etc/a", text: "new", time: 5}), []string{"C /etc/a new"}},
		"other owner":   {but("etc/a", f{name: "etc/a", text: "new", uid: 7}), []string{"C /etc/a new"}},
		"other mode":    {but("etc/a", f{name: "etc/a", text: "new", mode: 0o4111}), []string{"C /etc/a new"}},
		"setuid alone":  {but("etc/a", f{name: "etc/a", text: "new", mode: 0o4000}), []string{"C /etc/a new"}},
		"other link": {but("etc/soft", f{name: "etc/soft", kind: tar.TypeSymlink, link: "b"}),
			[]string{"C /etc/soft"}},
		"a file is gone": {but("etc/b"), []string{"D /etc/b"}},
		"a file for a tree": {[]f{dir("etc/"), {name: "deep", text: "d"}},
			[]string{"C /deep d", "D /emptied", "D /etc/a", "D /etc/b", "D /etc/hard", "D /etc/soft", "D /opt"}},
		"a tree for a file": {but("etc/b", dir("etc/b/"), f{name: "etc/b/c", text: "c"}),
			[]string{"C /etc/b", "A /etc/b/c c"}},
		"a whiteout's place": {append(as(), dir("gone/")), []string{"A /gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := told(t, image(t), stream(t, c.files...))
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
				t.Errorf("%v, %s", err, diff)
			}
		})
	}
}

// A file that does not fit the memory is compared too, and can still be read after that.
func TestCompareLargeFile(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", spoolInMemory/8)
	for name, want := range map[string][]string{large: nil, "X" + large[1:]: {"C /large X123456789abcdef0123"}} {
		b := new(Base)
		if err := b.Add(stream(t, f{name: "large", text: large})); err != nil {
			t.Fatal(err)
		}
		got, err := told(t, b, stream(t, f{name: "large", text: name}))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, %s", err, diff)
		}
	}
}

// A stream that is cut, or is none, fails, and tells no file as deleted.
func TestCompareBadStream(t *testing.T) {
	whole := stream(t, as()...).Bytes()
	cut := errors.New("the VM has gone")
	for name, r := range map[string]io.Reader{
		"cut in the middle":    bytes.NewReader(whole[:700]),
		"ended by its sender":  io.MultiReader(bytes.NewReader(whole[:1024]), failing{cut}),
		"failed after its end": io.MultiReader(bytes.NewReader(whole), failing{cut}),
		"out of the tree":      stream(t, f{name: "../x"}),
		"a device":             stream(t, f{name: "x", kind: tar.TypeBlock}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := told(t, image(t), r)
			if err == nil || strings.Contains(fmt.Sprint(got), "D ") {
				t.Errorf("%v, %q", err, got)
			}
		})
	}
}

type failing struct{ err error }

func (r failing) Read([]byte) (int, error) { return 0, r.err }

// A layer that was written brings an image to what the VM has.
func TestLayer(t *testing.T) {
	now := append(but("etc/a", f{name: "etc/a", text: "neo"}), dir("new/"), f{name: "new/s", kind: tar.TypeSymlink,
		link: "x"})
	now = slices.DeleteFunc(now, func(one f) bool { return one.name == "./etc/b" })
	b, again := image(t), image(t)
	var out bytes.Buffer
	l := NewLayer(&out)
	if err := b.Compare(stream(t, now...), roomy, []string{"/dev"}, l.Add); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := again.Add(&out); err != nil {
		t.Fatal(err)
	}
	if got, err := told(t, again, stream(t, now...)); err != nil || got != nil {
		t.Errorf("the image and the VM differ: %q, %v", got, err)
	}
	if err := l.Add(Change{Kind: Added, Path: "/etc/.wh.x", Header: &tar.Header{}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a name that deletes a file: %v", err)
	}
}
