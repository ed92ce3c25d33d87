// Command standin is each program that the images of the CRI suites need besides busybox: its name
// says which one. The suites' own images are not at hand where the tests run.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	name := filepath.Base(os.Args[0])
	programs := map[string]func() error{
		"pause": pause, "nginx": serve, "httpd": serve, "nnp": effective, "ipcs": segments, "pgrep": find,
		"stress": stress,
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "standin: no program is called %s\n", name)
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// pause reaps the processes of a pod until a signal ends it.
func pause() error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range c {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// serve answers each request with a page, as a web server does. The second argument is the address.
func serve() error {
	address := ":80"
	if len(os.Args) > 2 {
		address = os.Args[2]
	}
	name := filepath.Base(os.Args[0])
	if err := os.MkdirAll("/var/run", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/var/run/"+name+".pid", fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: serves %s\n", name, address)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "Welcome to %s!\n", name) })
	return (&http.Server{Addr: address, Handler: page, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

// effective says which user the process acts as.
func effective() error {
	_, err := fmt.Printf("Effective uid: %d\n", os.Geteuid())
	return err
}

// segments lists the shared memory of System V, as ipcs -m does.
func segments() error {
	data, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return err
	}
	fmt.Print("key shmid\n")
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n")[1:] {
		if f := strings.Fields(line); len(f) > 1 {
			fmt.Println(f[0], f[1])
		}
	}
	return nil
}

// find lists the processes of the name in the last argument, as pgrep does.
func find() error {
	dirs, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	found := false
	for _, file := range dirs {
		name, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(name), os.Args[len(os.Args)-1]) {
			fmt.Println(filepath.Base(filepath.Dir(file)))
			found = true
		}
	}
	if !found {
		os.Exit(1)
	}
	return nil
}

// stress holds --vm-bytes of memory (in MiB, with an M) for -t seconds.
func stress() error {
	mib, seconds := 0, 0
	for i, arg := range os.Args[:len(os.Args)-1] {
		var err error
		switch arg {
		case "--vm-bytes":
			mib, err = strconv.Atoi(strings.TrimSuffix(os.Args[i+1], "M"))
		case "-t":
			seconds, err = strconv.Atoi(os.Args[i+1])
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", arg, err)
		}
	}
	held := make([]byte, mib<<20)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	<-time.After(time.Duration(seconds) * time.Second)
	_, err := fmt.Printf("held %d bytes\n", len(held))
	return err
}
