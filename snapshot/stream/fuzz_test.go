package stream

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/version"
	"godwit.dev/godwit/snapshot/format"
)

// Whatever a source says, a destination ends with a typed error or has the VM. What the fuzzer
// makes up is cut into frames whose hashes are right, so that their content is looked at.
func FuzzReceive(f *testing.F) {
	page := append([]byte{1, 3, 0, 0, 0, 0, 0, 0, 0}, make([]byte, format.PageSize)...)
	f.Add(frames(frame{KindPages, 0, 0, page}, frame{KindBarrier, 0, 0, nil}, frame{KindZeros, 0, 0, make([]byte, 16)}))
	f.Add(frames(frame{KindDisk, 0, 0, append(make([]byte, 8), testDisk...)}, frame{KindState, 0, 0, make([]byte, 12)},
		frame{KindEnd, 0, 0, []byte(`{"sum":"00"}`)}))
	f.Add(frames(frame{KindPages, 2, 0, page}, frame{KindPages, 1, 1, page}, frame{KindTable, 0, 0, page},
		frame{KindFailed, 0, 0, []byte(`{"class":"x"}`)}))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		to := fuzzTarget(t, dir)
		var all bytes.Buffer
		w := NewWriter(&all, 0)
		err := w.JSON(t.Context(), KindHello, Hello{Version: version.Pages, Ref: to.Ref, Spaces: []Area{to.Spaces[0].Area},
			Disks: []Blob{to.Disks[0].Blob}})
		for err == nil && len(data) >= 5 {
			n := min(int(data[3])|int(data[4])<<8, len(data)-5, maxBody)
			p := &Packet{}
			p.reset()
			p.add(data[5 : 5+n]...)
			err = w.send(t.Context(), p, Kind(data[0]), format.Codec(data[1]), int(data[2]))
			data = data[5+n:]
		}
		if err != nil {
			t.Fatal(err)
		}
		loaded := 0
		to.Load = func(context.Context, string, End, *Written) error { loaded++; return nil }
		err = Receive(t.Context(), &wire{Reader: &all}, to)
		if err == nil != (loaded == 1) {
			t.Errorf("loaded %d times, %v", loaded, err)
		}
		var remote *RemoteError
		if err != nil && !errors.As(err, &remote) && !errdefs.IsDataLoss(err) && !errdefs.IsUnavailable(err) &&
			!errdefs.IsNotImplemented(err) {
			t.Errorf("of no class: %v", err)
		}
	})
}
