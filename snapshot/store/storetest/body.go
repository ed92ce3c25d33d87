package storetest

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// login writes a docker configuration with the credentials of User.
func login(t testing.TB, host string) string {
	t.Helper()
	dir := t.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(User + ":" + Password))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth),
		0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// strike ends an exchange as the fault says.
func (r *Registry) strike(f Fault) {
	if f.Stall {
		<-r.done
	}
	panic(http.ErrAbortHandler) // net/http's way to close the connection
}

// body of a request, cut by Fault.Up.
type body struct {
	io.ReadCloser
	registry *Registry
	seen     *Request
	fault    Fault
	n        int64
}

func (b *body) Read(p []byte) (int, error) {
	if up := b.fault.Up; up > 0 {
		if b.n >= up-1 {
			b.registry.strike(b.fault)
		}
		p = p[:min(int64(len(p)), up-1-b.n)]
	}
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	b.registry.mu.Lock()
	b.seen.Up += int64(n)
	b.registry.mu.Unlock()
	return n, err
}

// answer is cut by Fault.Down.
type answer struct {
	http.ResponseWriter
	registry *Registry
	fault    Fault
	slow     time.Duration
	n        int64
}

func (a *answer) Write(p []byte) (int, error) {
	if a.slow > 0 {
		return a.slowly(p)
	}
	if a.fault.Down == 0 {
		return a.ResponseWriter.Write(p)
	}
	keep := min(int64(len(p)), a.fault.Down-1-a.n)
	n, err := a.ResponseWriter.Write(p[:keep])
	a.n += int64(n)
	if err == nil && a.n >= a.fault.Down-1 {
		_ = http.NewResponseController(a.ResponseWriter).Flush()
		a.registry.strike(a.fault)
	}
	return n, err
}

// slowly writes sixteen pieces.
func (a *answer) slowly(p []byte) (done int, err error) {
	step := max(1, len(p)/16)
	for done < len(p) && err == nil {
		var n int
		n, err = a.ResponseWriter.Write(p[done:min(len(p), done+step)])
		done += n
		_ = http.NewResponseController(a.ResponseWriter).Flush()
		select {
		case <-time.After(a.slow):
		case <-a.registry.done:
			return done, io.ErrClosedPipe
		}
	}
	return done, err
}
