package initd

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	agentv1 "godwit.dev/godwit/api/agent/lean"
	"godwit.dev/godwit/guest/agentd"
	"godwit.dev/godwit/guest/agentd/serve"
	"godwit.dev/godwit/guest/session"

	"golang.org/x/sys/unix"
)

// Main is process 1 of the guest. It does not return.
func Main(version string) {
	var err error
	func() {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		err = run(version)
	}()
	console("cannot go on: %v", err)
	agentd.PowerOff()
	select {}
}

// console prints a line where the host keeps the console's log.
func console(format string, args ...any) {
	f, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		f = os.Stderr
	} else {
		defer f.Close()
	}
	fmt.Fprintf(f, "godwit-init: "+format+"\n", args...)
}

func run(version string) error {
	if err := mountEarly(); err != nil {
		return err
	}
	if err := yieldToWorkload(); err != nil {
		return err
	}
	list, err := readModules()
	if err != nil {
		return err
	}
	channel, rest := list.split("virtio_console.ko")
	if err := channel.load(); err != nil {
		return err
	}
	d := newDrivers(rest, seeded())
	failed := make(chan error, 3)
	listener := session.NewListener()
	svc, err := agentd.New(agentd.Options{
		Version: version, Dir: runDir, CgroupRoot: cgroupDir, Log: console, Poke: listener.Poke,
		Ready: d.ready, Network: d.network, Hold: d.loadPresent,
		// What the channel needs came first; while the host reads its first answer the rest
		// is loaded. Not before: a guest that is to be copied is told so by the first call.
		Greeted: sync.OnceFunc(func() {
			go func() {
				if err := d.ready(); err != nil {
					failed <- err
				}
			}()
		}),
		Started: func() {
			if err := d.loadRest(); err != nil {
				console("%v", err)
			}
		},
	})
	if err != nil {
		return err
	}
	listener.Open = svc.Open
	server := &serve.Server{Service: agentv1.Service, Handlers: agentv1.Handlers(svc), Log: console}
	go func() {
		failed <- fmt.Errorf("serve agent: %w", server.Serve(context.Background(), listener))
	}()
	go func() { failed <- openChannel(listener, d.ready) }()
	return <-failed
}

// seeded reports whether the kernel's generator needs no device any more.
func seeded() bool {
	_, err := unix.Getrandom(make([]byte, 1), unix.GRND_NONBLOCK)
	return err == nil
}
