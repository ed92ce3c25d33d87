package cli

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Watch goes on with a daemon that is started again, also where that happens while it tells: each event is printed
// once, in order, and it says once each time that it waits. An interrupt ends it at once, while it waits too.
func TestWatchFollowsOverRestarts(t *testing.T) {
	socket, s := place(t), &tellers{}
	stop := s.serve(t, socket)
	c := runs(t, socket, "watch")
	last := 0
	for restart := range 3 {
		s.add(uint64(last+1), uint64(last+2))
		c.out.until(t, "event", last+2)
		stop()
		c.log.until(t, "waiting for godwitd", restart+1)
		s.add(uint64(last+3), uint64(last+4), uint64(last+5))
		last += 5
		stop = s.serve(t, socket)
		c.out.until(t, "event", last)
	}
	stop()
	c.log.until(t, "waiting for godwitd", 4)
	c.interrupt()
	if code := <-c.code; code != 130 || c.out.String() != lines(1, last) || strings.Count(c.log.String(), "waiting") != 4 {
		t.Errorf("exit code %d; printed %s; said %s", code, &c.out, &c.log)
	}
}

// A connection that is cut after any number of bytes of an answer costs no event, and none is told
// twice.
func TestWatchIsCutInTheMiddle(t *testing.T) {
	socket, s := place(t), &tellers{}
	s.serve(t, socket)
	s.add(1, 2, 3)
	for _, cut := range []int64{0, 1, 9, 10, 11, 40, 100, 120} {
		front := place(t)
		relay(t, front, socket, cut)
		c := runs(t, front, "watch")
		c.out.until(t, "event-3", 1)
		c.interrupt()
		if code := <-c.code; code != 130 || c.out.String() != lines(1, 3) {
			t.Errorf("cut behind %d bytes: exit code %d; printed %s; said %s", cut, code, &c.out, &c.log)
		}
	}
}

// relay stands before a socket, and cuts its first connection after so many bytes of answers.
func relay(t *testing.T, front, back string, cut int64) {
	t.Helper()
	l, err := net.Listen("unix", front)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for limit := cut; ; limit = 1 << 40 {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", back)
			if err != nil {
				t.Error(err)
				return
			}
			all.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			all.Go(func() { _, _ = io.CopyN(client, server, limit); _ = client.Close(); _ = server.Close() })
		}
	})
}

// What was forgotten while the daemon was away, or after the event that --after names, is said.
func TestWatchTellsOfGaps(t *testing.T) {
	for output, says := range map[string]string{
		"text": "godwit: events 3 to 9 are not kept any more: what became of the VMs, godwit ps and godwit migrations say\n",
		"json": `{"note":"events 3 to 9 are not kept any more: what became of the VMs, ` +
			`godwit ps and godwit migrations say"}` + "\n",
	} {
		socket, s := place(t), &tellers{}
		s.add(1, 2)
		stop := s.serve(t, socket)
		c := runs(t, socket, "watch -o "+output)
		c.out.until(t, "event-2", 1)
		stop()
		s.forget()
		s.add(10, 11)
		s.serve(t, socket)
		c.out.until(t, "event-11", 1)
		if !strings.HasSuffix(c.log.String(), says) || strings.Count(c.log.String(), "kept") != 1 {
			t.Errorf("%s: said %s", output, &c.log)
		}
		late := runs(t, socket, "watch --after 8")
		late.out.until(t, "event-11", 1)
		if got := late.log.String(); !strings.HasPrefix(got, "godwit: event 9 is not kept any more") {
			t.Errorf("said %s", got)
		}
		fresh := runs(t, socket, "watch")
		fresh.out.until(t, "event-11", 1)
		if got := fresh.log.String(); got != "" {
			t.Errorf("from the oldest one on: said %s", got)
		}
	}
}
