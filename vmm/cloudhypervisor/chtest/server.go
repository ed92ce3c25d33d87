// Package chtest is a Cloud Hypervisor without a VM, for tests: its API with the
// peculiarities of the real one, which goes wrong at the call that it is told to.
package chtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ways in which a call goes wrong.
const (
	Refuse  = "refuse"  // with a list of reasons
	Broken  = "broken"  // with what is no JSON
	Empty   = "empty"   // with no body
	Hang    = "hang"    // for ever, and every later one too
	Close   = "close"   // the connection
	Garbage = "garbage" // what is no HTTP
	Exit    = "exit"    // the process ends
	Unknown = "unknown" // with the answer to a call that this version does not have
	Slow    = "slow"    // it is obeyed and answered where Late says so, and later ones wait for it
)

// maxConnections is the real one's: a client beyond it is sent away.
const maxConnections = 10

// Server is the fake. Its fields are set before Serve.
type Server struct {
	Version string // of vmm.ping
	FailAt  int    // call number that goes wrong, from 0 on
	How     string
	Silent  bool        // the guest never lets go of a device
	Late    func() bool // but does at a look at the devices where this says so; nil: never
	Lost    bool        // no event is reported
	Half    int         // how many times vm.pause is refused half way
	Hasty   string      // not empty: it opens no file of ranges
	Then    string      // is reported, as it stands, once the VM has booted
	Events  io.Writer   // event monitor
	Exit    func()
	Stuck   func() // nil, or called where who asked is made to wait: for any answer, or for the guest

	mu    sync.Mutex
	calls int
	hangs bool
	vm    vm
	open  int
}

// Serve answers every connection that l takes.
func (s *Server) Serve(l *net.UnixListener) error {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.open++
		full := s.open > maxConnections
		s.mu.Unlock()
		go func() {
			defer func() {
				conn.Close()
				s.mu.Lock()
				s.open--
				s.mu.Unlock()
			}()
			if full {
				fmt.Fprint(conn, "HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n")
				return
			}
			s.one(conn)
		}()
	}
}

// one answers the one request of a connection.
func (s *Server) one(conn *net.UnixConn) {
	in := &withFiles{conn: conn}
	defer in.close()
	request, err := http.ReadRequest(bufio.NewReader(in))
	if err != nil || len(request.TransferEncoding) > 0 || request.Method != http.MethodGet &&
		request.Method != http.MethodPut {
		fmt.Fprint(conn, "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n")
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	call := strings.TrimPrefix(request.URL.Path, "/api/v1/")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs {
		s.hang()
	}
	at := s.calls
	s.calls++
	if s.How != "" && at == s.FailAt && s.fail(conn) {
		return
	}
	if len(body) > 0 && bodyless[call] {
		answer(conn, 400, nil)
		return
	}
	status, out := s.handle(request.Method, call, body, in)
	answer(conn, status, out)
}

// bodyless are the calls that bear no body.
var bodyless = map[string]bool{"vm.boot": true, "vm.pause": true, "vm.resume": true}

func answer(w io.Writer, status int, body any) {
	data := []byte{}
	switch body := body.(type) {
	case nil:
	case []byte:
		data = body
	default:
		data, _ = json.Marshal(body)
	}
	// The reason phrase is empty.
	fmt.Fprintf(w, "HTTP/1.1 %d \r\nServer: fake\r\nConnection: keep-alive\r\n", status)
	if len(data) > 0 {
		fmt.Fprintf(w, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(data))
	} else if status != http.StatusNoContent {
		fmt.Fprint(w, "Content-Length: 0\r\n")
	}
	fmt.Fprint(w, "\r\n")
	_, _ = w.Write(data)
}

// fail reports whether that is all there is of the call.
func (s *Server) fail(conn *net.UnixConn) bool {
	switch s.How {
	case Refuse:
		answer(conn, 500, refusal("the fake was told to"))
	case Broken:
		answer(conn, 400, []byte("{ \"error\": \"told to.\nAll previous unanswered requests will be dropped.\" }"))
	case Unknown:
		answer(conn, 404, nil)
	case Empty:
		answer(conn, 500, nil)
	case Hang:
		s.hangs = true
		s.stuck()
		s.hang()
	case Garbage:
		fmt.Fprint(conn, "what?\r\n\r\n")
	case Exit:
		s.Exit()
	case Slow:
		s.stuck()
		for s.Late == nil || !s.Late() {
			time.Sleep(time.Millisecond)
		}
		return false
	}
	return true
}

func (s *Server) stuck() {
	if s.Stuck != nil {
		s.Stuck()
	}
}

// hang keeps the one thread that works on calls.
func (s *Server) hang() {
	s.mu.Unlock()
	select {}
}

func refusal(reasons ...string) []string {
	return append([]string{"Error from API"}, reasons...)
}

// event reports as the real one does, in several lines with an empty one at the end.
func (s *Server) event(source, name string, properties map[string]string) {
	if s.Lost || s.Events == nil {
		return
	}
	data, _ := json.MarshalIndent(struct {
		Timestamp  map[string]int    `json:"timestamp"`
		Source     string            `json:"source"`
		Event      string            `json:"event"`
		Properties map[string]string `json:"properties"`
	}{map[string]int{"secs": 1, "nanos": 2}, source, name, properties}, "", "  ")
	_, _ = s.Events.Write(append(data, "\n\n"...))
}

// withFiles reads a connection and keeps the files that come with the bytes.
type withFiles struct {
	conn  *net.UnixConn
	files []*os.File
}

func (w *withFiles) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(32*4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(b, oob)
	if messages, perr := unix.ParseSocketControlMessage(oob[:oobn]); perr == nil {
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				w.files = append(w.files, os.NewFile(uintptr(fd), "passed"))
			}
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (w *withFiles) close() {
	for _, f := range w.files {
		f.Close()
	}
}

func decode(body []byte, into any) bool {
	return json.NewDecoder(bytes.NewReader(body)).Decode(into) == nil
}
