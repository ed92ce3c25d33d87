package peer

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/internal/logtimes"

	nodev1 "godwit.dev/godwit/api/node/v1"
)

// writeLog writes pieces of several VMs, each as "UID TEXT", into files of at most five pieces each, the oldest last in
// name. An empty UID is an earlier build's.
func writeLog(t *testing.T, path string, pieces []string) {
	t.Helper()
	writers := map[string]*logtimes.Writer{}
	var f *os.File
	for i, piece := range pieces {
		if i%5 == 0 {
			for n := 20; n > 0; n-- {
				_ = os.Rename(fmt.Sprintf("%s.%d", path, n), fmt.Sprintf("%s.%d", path, n+1))
			}
			_ = os.Rename(path, path+".1")
			var err error
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
				t.Fatal(err)
			}
			defer f.Close()
		}
		uid, text, _ := strings.Cut(piece, " ")
		info, err := f.Stat()
		if err == nil {
			_, err = f.WriteString(text)
		}
		if writers[uid] == nil {
			writers[uid] = &logtimes.Writer{Path: path, UID: uid}
		}
		if uid != "" {
			err = errors.Join(err, writers[uid].Note(f, info.Size(), time.Unix(int64(i), 0)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A node gives another one the lines of one VM, over rotated files and in answers that are bounded, or the last ones
// alone. Those of other VMs of that name, and of a build that did not write down whose they are, it keeps.
func TestLogOfAVM(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat(strings.Repeat("y", 1023)+"\n", 300)
	writeLog(t, path, []string{" old\n", "u-0 secret\n", "u-1 one\n", "u-1 tw", "u-1 o\n", "u-1 " + long, "u-1 " + long,
		"u-1 three\n", "u-2 other\n", "u-2 other\n"})
	s := &Server{Node: "a", Output: func(string, string) (*url.URL, error) { return url.Parse("file://" + path) }}
	read := func(uid string, tail *int64) (text string, other bool, answers int) {
		req := &nodev1.LogRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}, Uid: uid, Tail: tail}
		for {
			resp, err := s.Log(t.Context(), req)
			if err != nil || proto.Size(resp) > logBytes+200<<10 {
				t.Fatalf("%d bytes, %v", proto.Size(resp), err)
			}
			for _, p := range resp.GetParts() {
				text += string(p.GetData())
			}
			other = other || resp.GetOther()
			if answers++; resp.GetEnd() {
				return text, other, answers
			}
			req.From, req.Tail = resp.GetNext(), tail
		}
	}
	all := "one\ntwo\n" + long + long + "three\n"
	if text, other, answers := read("u-1", nil); text != all || !other || answers != 2 {
		t.Errorf("%d bytes of %d, of others %v, in %d answers", len(text), len(all), other, answers)
	}
	lines := strings.SplitAfter(all, "\n")
	for _, n := range []int64{0, 1, 2, 400, 602, 1000} {
		want := strings.Join(lines[max(0, len(lines)-1-int(n)):], "")
		if text, _, _ := read("u-1", &n); text != want {
			t.Errorf("last %d: %d bytes, want %d", n, len(text), len(want))
		}
	}
	if text, _, _ := read("u-2", nil); text != "other\nother\n" {
		t.Errorf("other VM: %q", text)
	}
	if text, _, _ := read("u-3", nil); text != "" {
		t.Errorf("no VM: %q", text)
	}
}

// Without a file there is no log, and a question without the VM's UID is refused.
func TestNoLogOfAVM(t *testing.T) {
	to := "file://" + filepath.Join(t.TempDir(), "none")
	s := &Server{Node: "a", Output: func(string, string) (*url.URL, error) { return url.Parse(to) }}
	req := &nodev1.LogRequest{Vm: &nodev1.VM{Namespace: "default", Id: "web"}}
	if _, err := s.Log(t.Context(), req); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no uid: %v", err)
	}
	req.Uid = "u"
	for _, uri := range []string{to, "binary:///logger", "null://"} {
		to = uri
		if _, err := s.Log(t.Context(), req); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}
