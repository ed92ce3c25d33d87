package stdio

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A client that has attached and does not read delays nothing for long, and nothing of the log
// is lost. A stream that stands still lets the client go at once, and so does one that ends.
func TestClientThatDoesNotRead(t *testing.T) {
	f, err := newClientFifo(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	f.write(t.Context(), []byte("nobody")) // and nothing is kept for who comes
	r, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	for _, end := range []func(){func() {}, cancel, f.close} {
		over := make(chan struct{})
		go func() {
			defer close(over)
			f.write(ctx, make([]byte, 1<<20))
		}()
		end()
		<-over
	}
	if got, err := io.ReadAll(r); err != nil || len(got) == 0 || strings.Contains(string(got), "nobody") {
		t.Errorf("read are %d bytes, %v", len(got), err)
	}
	f.write(t.Context(), []byte("after its end"))
	var none *clientFifo
	none.write(t.Context(), []byte("x"))
	none.close()
}
