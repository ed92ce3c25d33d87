package cloudhypervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// sendFDs makes a call with descriptors in addition to its body, which package net/http cannot: they go with the first
// bytes of the request on the same socket.
func (c *client) sendFDs(ctx context.Context, path string, body any, fds []int) error {
	call := path[1:]
	if err := c.fits(body); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	request, err := encode(path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return failed(call, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	response, err := exchange(conn.(*net.UnixConn), request, fds)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return failed(call, err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 2 {
		return nil
	}
	var reasons []string
	if err := consume(response.Body, &reasons); err != nil {
		return failed(call, err)
	}
	return &refusal{call: call, status: response.StatusCode, reasons: reasons}
}

func encode(path string, body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrInternal, err)
	}
	var request bytes.Buffer
	fmt.Fprintf(&request, "PUT %s%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", basePath, path)
	fmt.Fprintf(&request, "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(data))
	request.Write(data)
	return request.Bytes(), nil
}

func exchange(conn *net.UnixConn, request []byte, fds []int) (*http.Response, error) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	n, _, err := conn.WriteMsgUnix(request, rights, nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(request[n:]); n < len(request) && err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(conn), nil)
}
