package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// SocketFD is the child's end of the socket. The others are argv[1] of the kinds of child.
const (
	SocketFD = 3
	ArgInit  = "container-init"
	ArgExec  = "container-exec"
	ArgPause = "pod-pause"
	// ArgUser is an init or exec that has entered the user namespace of its container.
	ArgUser = "user-ns"
)

// Args are the kinds of child.
var Args = []string{ArgInit, ArgExec, ArgPause, ArgUser, ForkServer}

// Mount is one mount of the OCI spec.
type Mount struct {
	Type, Source, Target string
	Options              []string
	From                 string `json:",omitempty"` // root of Source, if it is not the container's
	Map                  bool   `json:",omitempty"` // the ids of what a bind mount shows are the container's
}

// Container is what a child of kind ArgInit makes before it says Ready. One of kind ArgPause needs
// Root, Hostname and Sysctl.
type Container struct {
	Root         string // the root file system, mounted
	Hostname     string
	Sysctl       map[string]string
	Mounts       []Mount
	Devices      []Device
	Copies       []Mount // paths to bind to themselves, once files have been copied in
	Masked       []string
	ReadOnly     []string
	ReadOnlyRoot bool
	Propagation  string
	User         *User `json:",omitempty"` // a descriptor of it comes with the message, as the last one

	users int  // that descriptor
	alone bool // no other container shares its namespaces
}

// Process is what a child becomes. Its stdio comes with the message as descriptors,
// three of them, or none for a terminal. After them come the pidfd of the container's init, for ArgExec, and the user
// namespace.
type Process struct {
	Spec        *specs.Process
	Personality uint64   // of personality(2); 0: the guest's own
	Seccomp     *Seccomp // nil: no filter
	User        *User    `json:",omitempty"`
}

// Seccomp is a filter that the process takes on last.
type Seccomp struct {
	Program []byte // array of struct sock_filter
	Flags   uint32
}

// The messages of the agent, in order: Container (not ArgExec), Process, Go (not ArgPause). The child
// answers Container with Ready. It answers Process with Console (if there is a terminal) and Exec. Then
// exec closes the socket, or Error says why not.
type message struct {
	Container *Container `json:",omitempty"`
	Process   *Process   `json:",omitempty"`
	Event     Event      `json:",omitempty"`
	Error     *Error     `json:",omitempty"`
}

// Event is a message without content.
type Event string

// The events.
const (
	Ready   Event = "ready"
	Console Event = "console" // with the terminal's master as descriptor
	Exec    Event = "exec"    // about to exec, waits for Go
	Go      Event = "go"
	Done    Event = "done" // never sent: the socket was closed by exec
)

// Error is an error of the child with its class.
type Error struct {
	Class string
	Text  string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Unwrap gives the class.
func (e *Error) Unwrap() error { return classes[e.Class] }

var classes = map[string]error{
	"notfound":  errdefs.ErrNotFound,
	"denied":    errdefs.ErrPermissionDenied,
	"invalid":   errdefs.ErrInvalidArgument,
	"notimpl":   errdefs.ErrNotImplemented,
	"exhausted": errdefs.ErrResourceExhausted,
	"state":     errdefs.ErrFailedPrecondition,
}

// toError names the class of err for the wire.
func toError(err error) *Error {
	e := &Error{Text: err.Error()}
	for name, class := range classes {
		if errors.Is(err, class) {
			e.Class = name
		}
	}
	return e
}

// Pipe is one end of the socket between agent and child.
type Pipe struct {
	conn *net.UnixConn
	dec  *json.Decoder
	fds  []int
}

// NewPipe takes over a socket.
func NewPipe(f *os.File) (*Pipe, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use stage socket: %w", err)
	}
	p := &Pipe{conn: c.(*net.UnixConn)}
	p.dec = json.NewDecoder(fdReader{p})
	return p, nil
}

// Close closes the socket and the descriptors that were not taken.
func (p *Pipe) Close() error {
	for _, fd := range p.fds {
		unix.Close(fd)
	}
	p.fds = nil
	return p.conn.Close()
}

// SendContainer asks a child to make the container. It enters the namespaces first, except the user namespace of c.
func (p *Pipe) SendContainer(c *Container, namespaces ...*os.File) error {
	var fds []int
	for _, f := range namespaces {
		fds = append(fds, int(f.Fd()))
	}
	return p.send(message{Container: c}, fds...)
}

// SendProcess tells a child what to become.
func (p *Pipe) SendProcess(proc *Process, fds []int) error {
	return p.send(message{Process: proc}, fds...)
}

// SendGo lets a child exec.
func (p *Pipe) SendGo() error { return p.send(message{Event: Go}) }

func (p *Pipe) send(m message, fds ...int) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode stage message: %w", err)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	// The descriptors travel with the first byte.
	if _, _, err := p.conn.WriteMsgUnix(data[:1], oob, nil); err != nil {
		return fmt.Errorf("send stage message: %w", err)
	}
	if _, err := p.conn.Write(data[1:]); err != nil {
		return fmt.Errorf("send stage message: %w", err)
	}
	return nil
}

func (p *Pipe) receive() (m message, err error) {
	err = p.dec.Decode(&m)
	return m, err
}

// Next waits for the child. It returns the event, an *Error, or Done when the child
// has closed the socket.
func (p *Pipe) Next() (Event, error) {
	m, err := p.receive()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return Done, nil
	case err != nil:
		return "", fmt.Errorf("read stage message: %w", err)
	case m.Error != nil:
		return "", m.Error
	}
	return m.Event, nil
}

// TakeFDs returns the descriptors that have arrived; they are the caller's.
func (p *Pipe) TakeFDs() []int {
	fds := p.fds
	p.fds = nil
	return fds
}

type fdReader struct{ p *Pipe }

func (r fdReader) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := r.p.conn.ReadMsgUnix(b, oob)
	n = max(n, 0) // -1 comes with an error; an io.Reader knows no such number
	if oobn > 0 {
		fds, perr := rights(oob[:oobn])
		if r.p.fds = append(r.p.fds, fds...); perr != nil {
			return n, perr
		}
	}
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}
