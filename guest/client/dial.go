package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"godwit.dev/godwit/guest/session"
)

// VSockPort is where godwit-init listens if the VM has a vsock and no virtio-serial
// port named "agent".
const VSockPort = session.VSockPort

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// connectTimeout bounds one attempt: a guest that is slow after a restore needs its time,
// and one that does not listen yet refuses at once.
const connectTimeout = 20 * time.Second

// VSock returns a Dial for a hybrid vsock: a unix socket that asks for the port first.
func VSock(port uint32) func(ctx context.Context, path string) (net.Conn, error) {
	return func(ctx context.Context, path string) (net.Conn, error) {
		c, err := dialUnix(ctx, path)
		if err != nil {
			return nil, err
		}
		_ = c.SetDeadline(time.Now().Add(connectTimeout))
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if err := connectVSock(c, port); err != nil {
			return nil, errors.Join(fmt.Errorf("connect vsock %s port %d: %w", path, port, err), c.Close())
		}
		if stop() {
			_ = c.SetDeadline(time.Time{})
		}
		return c, nil
	}
}

// connectVSock reads byte by byte: what follows the line belongs to the guest.
func connectVSock(c net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", port); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(oneByte{c}, 16).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "OK ") {
		return fmt.Errorf("answered %q", line)
	}
	return nil
}

type oneByte struct{ net.Conn }

func (o oneByte) Read(b []byte) (int, error) { return o.Conn.Read(b[:1]) }
