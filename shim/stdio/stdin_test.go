package stdio

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"godwit.dev/godwit/api/guesttool"
	"godwit.dev/godwit/guest/client"
)

// A client that goes is no end of the input of a process: another may attach. That of a tool, which serves one client,
// ends: a copy whose client was killed would wait in the guest for ever.
func TestInputOfAClientThatIsGone(t *testing.T) {
	for id, ends := range map[string]bool{"shell": false, guesttool.ExecPrefix + "x": true} {
		t.Run(id, func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), "in")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			st, err := Open("ns", "vm", URIs{Stdin: fifo}, nil)
			if err != nil {
				t.Fatal(err)
			}
			p := NewPump(id, st, client.Offsets{})
			defer p.Release()
			writer, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := writer.WriteString("half"); err != nil {
				t.Fatal(err)
			}
			if data := <-p.input; string(data) != "half" {
				t.Errorf("it reads %q", data)
			}
			writer.Close()
			if !ends {
				if writer, err = os.OpenFile(fifo, os.O_WRONLY, 0); err != nil {
					t.Fatal(err)
				}
				defer writer.Close()
				if _, err := writer.WriteString("more"); err != nil {
					t.Fatal(err)
				}
			}
			if data, more := <-p.input; more == ends {
				t.Errorf("after the client is gone: %q, %v", data, more)
			}
		})
	}
}
