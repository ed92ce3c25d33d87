package session

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// Hellos that the guest has not read are not repeated. A guest that opens its port after seconds
// reads one, not the padding of many. Once it has read it, it is asked again.
func TestUnreadHello(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := Dial(func(ctx context.Context) (io.ReadWriteCloser, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	<-time.After(10 * helloMin) // the guest boots
	buf := make([]byte, 2*frameSize)
	n, err := peer.Read(buf)
	if err != nil || n != headerSize {
		t.Errorf("%d bytes wait, want one hello of %d: %v", n, headerSize, err)
	}
	if n, err = peer.Read(buf); err != nil || n == 0 {
		t.Errorf("no second hello: %d bytes, %v", n, err)
	}
}
