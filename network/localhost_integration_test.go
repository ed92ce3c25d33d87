//go:build integration

package network

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// TestListenLocalhost: connections to any port of localhost in the namespace come to the listener, and know their port.
// Those to another address do not. After Close nothing is taken.
func TestListenLocalhost(t *testing.T) {
	ns := newNS(t, "n")
	sh(t, ns, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	l, err := ListenLocalhost(ns)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "port %d", c.LocalAddr().(*net.TCPAddr).Port)
			c.Close()
		}
	}()
	dial := func(address string) (text string, err error) {
		err = Do(ns, func() error {
			c, err := net.Dial("tcp4", address)
			if err != nil {
				return err
			}
			defer c.Close()
			data, err := io.ReadAll(c)
			text = string(data)
			return err
		})
		return text, err
	}
	for _, port := range []int{1, 80, 8080, 65535} {
		if got, err := dial(fmt.Sprintf("127.0.0.1:%d", port)); err != nil || got != fmt.Sprintf("port %d", port) {
			t.Errorf("port %d: %q, %v", port, got, err)
		}
	}
	if got, err := dial("192.0.2.1:80"); err == nil {
		t.Errorf("a connection to another address was taken: %q", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := dial("127.0.0.1:80"); err == nil {
		t.Errorf("a connection was taken after Close: %q", got)
	}
	if again, err := ListenLocalhost(ns); err != nil || again.Close() != nil {
		t.Errorf("listen again: %v", err)
	}
}
