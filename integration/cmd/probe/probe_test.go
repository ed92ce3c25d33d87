package main

import (
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"godwit.dev/godwit/integration/images"
)

// hears wants 25 beacons from the first on.
func hears(t *testing.T, l net.PacketConn, nonce string) {
	t.Helper()
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	for want := uint64(1); want <= 25; want++ {
		n, _, err := l.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		var b images.Beacon
		if err := json.Unmarshal(buf[:n], &b); err != nil || b.Counter != want || b.Nonce != nonce {
			t.Fatalf("beacon %d: %s, %v", want, buf[:n], err)
		}
	}
}

func TestProbeTells(t *testing.T) {
	p, err := newProbe(filepath.Join(t.TempDir(), "d", "journal"), 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go p.beat(l.LocalAddr().String(), time.Millisecond)
	hears(t, l, p.nonce)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	var s images.ProbeState
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Nonce != p.nonce || len(s.Nonce) != 128 || s.Counter < 25 || !s.FileOK || s.FileLines < 2 || s.StartTime == "" ||
		s.BootID == "" || s.PID != os.Getpid() {
		t.Errorf("state %+v", s)
	}
}

// Soft memory has no two equal pages: one page stored for many would spoil a measurement.
func TestSoftMemory(t *testing.T) {
	seen := map[string]bool{}
	m := softMemory(1 << 20)
	for at := 0; at < len(m); at += 4096 {
		page := string(m[at : at+4096])
		if seen[page] {
			t.Fatalf("the page at %d stands twice", at)
		}
		seen[page] = true
	}
}

// A checker that cannot see damage proves nothing.
func TestJournalSeesDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"truncated": func(t *testing.T, path string) {
			if err := os.Truncate(path, 10); err != nil {
				t.Fatal(err)
			}
		},
		"changed": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("1 stamp\n3 stamp\n3 stamp\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"gone": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			j, err := openJournal(path, "stamp")
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				j.add()
			}
			if n, err := j.check(); n != 3 || err != nil {
				t.Fatalf("whole: %d lines, %v", n, err)
			}
			damage(t, path)
			if _, err := j.check(); err == nil {
				t.Error("damage not seen")
			}
		})
	}
}
