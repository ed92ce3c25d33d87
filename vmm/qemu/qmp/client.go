// Package qmp is a client of QEMU's monitor socket: one connection, commands matched to replies
// by id, events handed to one function, descriptors passed with a command.
//
// A command that runs into its context's end is given up, its late reply is dropped. What the VM
// did with it is then unknown: the caller kills, it does not try again.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// maxMessage bounds one line of QEMU's, which a hostile guest may have taken over. The
// longest that we ask for, all that QEMU understands, has 0.3 MiB.
const maxMessage = 4 << 20

// writeTimeout bounds a write under a context without a deadline. The socket's buffer
// takes any command of ours at once unless the monitor hangs.
const writeTimeout = 10 * time.Second

// Event is one that QEMU sent by itself.
type Event struct {
	Name string
	Data json.RawMessage
	Time time.Time
}

// Client is one connection to a monitor. Its methods may be called concurrently.
type Client struct {
	conn    *net.UnixConn
	onEvent func(Event)
	writing chan struct{} // holds one token: the holder of it writes
	done    chan struct{}

	mu      sync.Mutex // guards what follows
	next    uint64
	pending map[uint64]chan message
	err     error // why the connection ended
}

// Dial connects to the monitor at path and agrees on capabilities. QEMU talks to one
// client at a time: while another is connected, Dial waits until ctx ends. onEvent, if
// not nil, is called for each event in order and must not block or call the client.
func Dial(ctx context.Context, path string, onEvent func(Event)) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect monitor %s: %w: %w", path, errdefs.ErrUnavailable, err)
	}
	c, err := newClient(ctx, conn.(*net.UnixConn), onEvent)
	if err != nil {
		return nil, fmt.Errorf("connect monitor %s: %w", path, err)
	}
	return c, nil
}

func newClient(ctx context.Context, conn *net.UnixConn, onEvent func(Event)) (*Client, error) {
	c := &Client{
		conn: conn, onEvent: onEvent,
		writing: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[uint64]chan message{},
	}
	greeted := make(chan struct{})
	go c.read(greeted)
	select {
	case <-greeted:
	case <-c.done:
		return nil, errors.Join(c.Err(), c.Close())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("no greeting: %w", ctx.Err()), c.Close())
	}
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Execute runs command with args, which becomes a JSON object, and decodes what it
// returns into result. Both may be nil.
func (c *Client) Execute(ctx context.Context, command string, args, result any) error {
	return c.execute(ctx, command, args, result, nil)
}

// SendFile gives QEMU a duplicate of file under name, for later commands of this
// connection. The caller keeps its own.
func (c *Client) SendFile(ctx context.Context, name string, file *os.File) error {
	return c.ExecuteWith(ctx, "getfd", map[string]any{"fdname": name}, nil, file)
}

// ExecuteWith is Execute of a command that takes a descriptor with it. The caller keeps its own.
func (c *Client) ExecuteWith(ctx context.Context, command string, args, result any, file *os.File) error {
	return c.execute(ctx, command, args, result, file)
}

// Close ends the connection; QEMU and the VM go on. What is being executed fails.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Done is closed when the connection has ended and the last event was handed over.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended, nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Client) execute(ctx context.Context, command string, args, result any, file *os.File) error {
	id, answer, err := c.register()
	if err != nil {
		return fmt.Errorf("execute %s: %w", command, err)
	}
	defer c.forget(id)
	if err := c.write(ctx, request{Execute: command, Arguments: args, ID: id}, file); err != nil {
		return fmt.Errorf("execute %s: %w", command, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return &Error{Command: command, Class: m.Error.Class, Desc: m.Error.Desc}
		}
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(m.Return, result); err != nil {
			return fmt.Errorf("decode answer to %s: %w: %w", command, errdefs.ErrInternal, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("execute %s: no answer: %w", command, ctx.Err())
	case <-c.done:
		return fmt.Errorf("execute %s: %w", command, c.Err())
	}
}

func (c *Client) register() (uint64, chan message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.next++
	answer := make(chan message, 1)
	c.pending[c.next] = answer
	return c.next, answer, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// read runs until the connection ends.
func (c *Client) read(greeted chan struct{}) {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxMessage)
	var err error
	for err == nil && lines.Scan() {
		err = c.dispatch(lines.Bytes(), &greeted)
	}
	if err == nil {
		err = lines.Err()
	}
	if err == nil || errors.Is(err, net.ErrClosed) {
		err = errors.New("closed")
	}
	c.mu.Lock()
	c.err = fmt.Errorf("monitor connection: %w: %w", errdefs.ErrUnavailable, err)
	c.mu.Unlock()
	c.conn.Close()
	close(c.done)
}

func (c *Client) dispatch(line []byte, greeted *chan struct{}) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("not a QMP message: %w", err)
	}
	if *greeted != nil {
		if m.Greeting == nil {
			return errors.New("no QMP greeting")
		}
		close(*greeted)
		*greeted = nil
		return nil
	}
	if m.Event != "" {
		if c.onEvent != nil {
			c.onEvent(Event{Name: m.Event, Data: m.Data, Time: m.Timestamp.time()})
		}
		return nil
	}
	c.mu.Lock()
	answer := c.pending[m.ID]
	delete(c.pending, m.ID)
	c.mu.Unlock()
	if answer != nil {
		answer <- m
	}
	return nil
}
