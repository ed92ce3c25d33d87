// Command probe is the workload of the tests. It keeps a nonce and a counter in memory only, and
// appends to a file. It tells all of it over the network. So an observer can say from outside
// whether a VM that woke is the one that fell asleep.
package main

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"godwit.dev/godwit/integration/images"
)

type probe struct {
	nonce   string
	journal *journal
	counter atomic.Uint64
	ballast []byte
	soft    []byte
	churn   churn
}

func main() {
	listen := flag.String("listen", ":8080", "address of the HTTP answers")
	beacon := flag.String("beacon", "", "where UDP beacons go; empty: nowhere")
	interval := flag.Duration("interval", 10*time.Millisecond, "between two beacons")
	lean := flag.Bool("lean", false, "a process without Go's runtime sends the beacons, which then count by "+
		"themselves; the file does not grow")
	file := flag.String("file", "/data/journal", "file that grows by a line with every tenth beacon")
	fill := flag.Int("fill", 0, "MiB of random memory to hold")
	soft := flag.Int("soft", 0, "MiB of memory to hold whose pages differ and compress well")
	read := flag.String("read", "", "directory whose files are read, so that they are in the page cache; empty: no "+
		"workload")
	heap := flag.Int("heap", 0, "MiB of memory with pieces of those files; it and a file beside the journal change all "+
		"the time")
	churned := flag.Int("churn", 0, "pages of random bytes to write each second, beside files and heap that are "+
		"written anew")
	dirty := flag.Int("dirty", 0, "MiB of memory to write to each second, a word in each page, over and over")
	direct := flag.String("direct", "", "file that is read past the page cache all the time; empty: none")
	flag.Parse()
	log.SetFlags(0)

	p, err := newProbe(*file, *fill)
	if err != nil {
		log.Fatal(err)
	}
	p.soft = softMemory(*soft << 20)
	if *read != "" {
		w, err := newWorkload(*read, *file+".data", *heap<<20)
		if err != nil {
			log.Fatal(err)
		}
		go w.run()
	}
	if *lean {
		go p.tick(*beacon, *interval)
	} else {
		go p.beat(*beacon, *interval)
	}
	go echo(*listen)
	go soil(*dirty)
	if *direct != "" {
		if err := readDirect(*direct); err != nil {
			log.Fatal(err)
		}
	}
	go p.churn.run(*churned, filepath.Dir(*file))
	log.Printf("probe: nonce %s", p.nonce)
	log.Fatal(http.ListenAndServe(*listen, p))
}

// echo sends each datagram back to where it came from.
func echo(listen string) {
	conn, err := net.ListenPacket("udp", listen)
	if err != nil {
		log.Fatal(err)
	}
	data := make([]byte, 2048)
	for {
		if n, from, err := conn.ReadFrom(data); err == nil {
			_, _ = conn.WriteTo(data[:n], from)
		}
	}
}

func newProbe(file string, fill int) (*probe, error) {
	nonce := make([]byte, 64)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	p := &probe{nonce: hex.EncodeToString(nonce), ballast: make([]byte, fill<<20)}
	if _, err := rand.Read(p.ballast); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	var err error
	p.journal, err = openJournal(file, p.nonce[:16])
	return p, err
}

// softMemory has a number in every 64 bytes and nothing else, like a table of the kernel.
func softMemory(size int) []byte {
	m := make([]byte, size)
	for at := 0; at < size; at += 64 {
		binary.LittleEndian.PutUint64(m[at:], uint64(at))
	}
	return m
}

// beat counts and tells. The counter grows with each round and not with time, so its
// value after a wake is the one at the pause plus one.
func (p *probe) beat(to string, interval time.Duration) {
	var conn net.Conn
	for range time.Tick(interval) {
		n := p.counter.Add(1)
		if n%10 == 0 {
			p.journal.add()
		}
		if to == "" {
			continue
		}
		if conn == nil {
			var err error
			if conn, err = net.Dial("udp", to); err != nil {
				continue // no route yet: the next round tries again
			}
		}
		msg, err := json.Marshal(images.Beacon{Nonce: p.nonce, Counter: n, Time: time.Now()})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := conn.Write(msg); err != nil {
			conn.Close()
			conn = nil
		}
	}
}

func (p *probe) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	lines, err := p.journal.check()
	s := images.ProbeState{
		Nonce: p.nonce, PID: os.Getpid(), StartTime: startTime(), BootID: read("/proc/sys/kernel/random/boot_id"),
		Counter: p.counter.Load(), Pages: p.churn.pages.Load(), FileLines: lines, FileOK: err == nil, Time: time.Now(),
	}
	if err != nil {
		s.FileError = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s); err != nil {
		log.Print(err)
	}
}

// startTime is when this process started, in clock ticks since the boot of its kernel.
func startTime() string {
	_, rest, _ := strings.Cut(read("/proc/self/stat"), ") ")
	if f := strings.Fields(rest); len(f) > 19 {
		return f[19]
	}
	return ""
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
