package process

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// A process that is started offline reaches nothing that listens on the host's loopback, by TCP or by an abstract unix
// socket. One that is not offline does.
func TestOffline(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, offline := range []bool{false, true} {
		p, said := confined(t, Launch{User: User{ID: user}, Offline: offline},
			"/bin/bash -c ': >/dev/tcp/127.0.0.1/"+port+"' 2>/dev/null && echo reached", "")
		if strings.Contains(said, "reached") == offline {
			t.Errorf("offline %v: it says %q", offline, said)
		}
		// Abstract sockets and links are those of the namespace.
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", p.PID))
		if links := strings.Count(string(data), ":"); err != nil || offline && links != 1 {
			t.Errorf("offline %v: %d links, %v", offline, links, err)
		}
	}
}
