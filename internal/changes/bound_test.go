package changes

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// sparse is an archive of GNU tar's format 1.0, whose member of few bytes stands for 4 EiB. The library's writer makes
// none: its keys are put in afterwards, in the place of others as long.
func sparse(name string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := "1\n4611686018427387903\n1\n"
	content += strings.Repeat("\x00", 512-len(content)) + "x"
	_ = w.WriteHeader(&tar.Header{Name: "GNUSparseFile.0/s", Typeflag: tar.TypeReg, Size: int64(len(content)),
		Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{"XYZ.sparse.major": "1", "XYZ.sparse.minor": "0",
			"XYZ.sparse.name": name, "XYZ.sparse.realsize": "4611686018427387904"}})
	_, _ = io.WriteString(w, content)
	_ = w.Close()
	return bytes.ReplaceAll(b.Bytes(), []byte("XYZ.sparse."), []byte("GNU.sparse."))
}

// small takes so many bytes.
type small struct{ left int }

var errSmall = errors.New("the disk of the host is full")

func (s *small) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, errSmall
	}
	return len(p), nil
}

// endless is the stream of a guest that never ends it: one more file, or one more of the same name.
type endless struct {
	t    *testing.T
	next []f
	have bytes.Buffer
}

func (e *endless) Read(p []byte) (int, error) {
	if e.have.Len() == 0 {
		all := stream(e.t, e.next...).Bytes()
		e.have.Write(all[:len(all)-1024]) // without its end
	}
	return e.have.Read(p)
}

// A guest sends what it likes. What comes of it on the host is bounded by what the VM can have.
func TestCompareIsBounded(t *testing.T) {
	room := Room{Disk: 1 << 20, Memory: 1 << 20}
	same := as()[2]
	for name, c := range map[string]struct {
		from io.Reader
		is   func(error) bool
	}{
		"a file of holes":          {bytes.NewReader(sparse("s")), errdefs.IsInvalidArgument},
		"a file of holes, skipped": {bytes.NewReader(sparse("dev/s")), errdefs.IsInvalidArgument},
		"files without end": {&endless{t: t, next: []f{{name: "new", text: strings.Repeat("x", 1000)}}},
			errdefs.IsFailedPrecondition},
		"one name without end":      {&endless{t: t, next: []f{same}}, errdefs.IsInvalidArgument},
		"directories without end":   {&endless{t: t, next: []f{dir("new")}}, errdefs.IsInvalidArgument},
		"files of a mount, endless": {&endless{t: t, next: []f{{name: "dev/x", text: "x"}}}, errdefs.IsInvalidArgument},
		"a large file": {stream(t, f{name: "new", text: strings.Repeat("x", 1<<20+1)}),
			errdefs.IsFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLayer(&small{left: 8 << 20})
			if err := image(t).Compare(c.from, room, []string{"/dev"}, l.Add); !c.is(err) {
				t.Error(err)
			}
		})
	}
	l := NewLayer(&small{left: 8 << 20})
	whole := stream(t, append(as(), f{name: "new", text: strings.Repeat("x", 1<<20)})...)
	if err := image(t).Compare(whole, room, []string{"/dev"}, l.Add); err != nil {
		t.Errorf("as much as its disk has: %v", err)
	}
}
