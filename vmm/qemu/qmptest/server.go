// Package qmptest is a QEMU for tests: it speaks QMP on a listener, keeps the few facts
// that a monitor shows, has the real one's quirks, and goes wrong at call N.
package qmptest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How a call goes wrong.
const (
	Refuse  = "refuse"  // an error is the answer
	Hang    = "hang"    // there is no answer, nor any later one
	Close   = "close"   // the connection ends
	Garbage = "garbage" // the answer is no JSON
	Exit    = "exit"    // Server.Exit is called
	Slow    = "slow"    // it is obeyed and answered where Server.Late says so, and later ones wait for it
)

// Server is one fake QEMU. Its fields are set before Serve.
type Server struct {
	FailAt int      // number of the call that goes wrong; 0 is the greeting
	How    string   // empty: none goes wrong
	Exit   func()   // ends the process
	Status string   // as in query-status
	NICs   []string // devices that are plugged in, disks too
	// Silent makes the guest ignore requests to eject a device.
	Silent bool
	// Saves makes a save last until Late says so.
	Saves bool
	// Late tells, at a look at the devices, whether the guest has let go after all of what it
	// was asked for; nil: it never does by itself.
	Late func() bool
	// Stuck, if not nil, is called where who asked is made to wait: no answer will come, or
	// the guest ignores a request.
	Stuck func()

	// Untold keeps the events of saves and loads back.
	Untold bool

	// Full is how many times the disk is full when the VM is let run.
	Full int

	// Mute is how many questions for the status of a VM whose disk is full get no answer.
	Mute int

	mu        sync.Mutex // of what follows: a state that is loaded comes when it likes
	calls     int
	migration string
	files     map[string]*os.File
	ejecting  map[string]bool
	netdevs   map[string]bool
	sets      map[int]set
	lastSet   int
	nodes     map[string]string // block nodes: free, used, ejected
	places    map[string]string // the device at each address of the bus of hot disks
	saving    *os.File          // takes the state of a save that lasts
	out       *bufio.Writer
}

type call struct {
	Execute   string         `json:"execute"`
	Arguments map[string]any `json:"arguments"`
	ID        any            `json:"id"`
}

type refusal struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func refuse(format string, args ...any) *refusal {
	return &refusal{"GenericError", fmt.Sprintf(format, args...)}
}

// Serve talks to one client after the other, as QEMU does, until l is closed.
func (s *Server) Serve(l *net.UnixListener) error {
	s.files, s.ejecting, s.netdevs = map[string]*os.File{}, map[string]bool{}, map[string]bool{}
	s.sets, s.nodes = map[int]set{}, map[string]string{}
	s.places = map[string]string{}
	for _, id := range s.NICs {
		s.netdevs[strings.TrimPrefix(id, "nic-")] = true
	}
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		s.converse(conn)
		conn.Close()
	}
}

// greet tells whether the server goes on afterwards.
func (s *Server) greet(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = bufio.NewWriter(conn)
	if !s.countCall() {
		return false
	}
	s.send(map[string]any{"QMP": map[string]any{"version": map[string]any{}, "capabilities": []string{"oob"}}})
	return true
}

func (s *Server) converse(conn *net.UnixConn) {
	if !s.greet(conn) {
		return
	}
	negotiated := false
	var pending []byte
	buf, oob := make([]byte, 4096), make([]byte, 64)
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		pending = append(pending, buf[:n]...)
		file := received(oob[:oobn])
		for {
			var c call
			rest, ok := next(pending, &c)
			if !ok {
				break
			}
			pending = rest
			if !s.handleCall(c, file, negotiated || c.Execute == "qmp_capabilities") {
				return
			}
			negotiated = true
		}
	}
}

// handleCall tells whether the server goes on afterwards.
func (s *Server) handleCall(c call, file *os.File, negotiated bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.countCall() {
		return false
	}
	if c.Execute == "query-status" && s.Status == "io-error" && s.Mute > 0 {
		s.Mute--
		return true
	}
	s.answer(c, file, negotiated)
	return true
}

// next takes one line off pending.
func next(pending []byte, c *call) ([]byte, bool) {
	advance, line, err := bufio.ScanLines(pending, false)
	if err != nil || advance == 0 || json.Unmarshal(line, c) != nil {
		return pending, false
	}
	return pending[advance:], true
}

func received(oob []byte) *os.File {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "received")
}

// countCall counts a call and tells whether the server goes on after it.
func (s *Server) countCall() bool {
	number := s.calls
	s.calls++
	if s.How == "" || number != s.FailAt {
		return true
	}
	switch s.How {
	case Hang:
		s.stuck()
		select {}
	case Close:
		return false
	case Exit:
		s.Exit()
		return false
	case Garbage:
		s.out.WriteString("garbage\n")
		s.out.Flush()
	case Slow:
		s.stuck()
		for s.Late == nil || !s.Late() {
			time.Sleep(time.Millisecond)
		}
	}
	return true
}

func (s *Server) stuck() {
	if s.Stuck != nil {
		s.Stuck()
	}
}

func (s *Server) answer(c call, file *os.File, negotiated bool) {
	var result any = struct{}{}
	var refused *refusal
	switch {
	case s.How == Refuse && s.calls-1 == s.FailAt:
		refused = refuse("refused by the test")
	case !negotiated:
		refused = &refusal{"CommandNotFound", "expecting capabilities negotiation with 'qmp_capabilities'"}
	default:
		result, refused = s.execute(c, file)
	}
	if refused != nil {
		if file != nil {
			file.Close()
		}
		s.send(map[string]any{"id": c.ID, "error": refused})
		return
	}
	s.send(map[string]any{"id": c.ID, "return": result})
}

func (s *Server) event(name string, data map[string]any) {
	s.send(map[string]any{"event": name, "data": data, "timestamp": map[string]int{"seconds": 1, "microseconds": 2}})
}

// send writes one line. A client that is gone shows at the next read.
func (s *Server) send(message any) {
	line, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	s.out.Write(append(line, '\n'))
	s.out.Flush()
}
