package initd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/agentd"
	"godwit.dev/godwit/guest/session"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
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
	list, err := readModules()
	if err != nil {
		return err
	}
	// What the channel needs comes first; the host's first call is answered while the
	// rest is loaded.
	channel, rest := list.split("virtio_console.ko")
	if err := channel.load(); err != nil {
		return err
	}
	eager, later := rest.part()
	if !seeded() { // what the container does first may wait for it
		eager = append(eager, rngModule)
	}
	ready := sync.OnceValue(eager.loadUseful)
	svc, err := agentd.New(agentd.Options{
		Version: version, Dir: runDir, CgroupRoot: cgroupDir, Log: console,
		Ready: ready, Network: sync.OnceValue(later.network().load),
		Started: func() {
			if err := later.loadUseful(); err != nil {
				console("%v", err)
			}
		},
	})
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	listener := session.NewListener()
	go serve(svc, listener, failed)
	go func() {
		if err := ready(); err != nil {
			failed <- err
		}
	}()
	go func() { failed <- openChannel(listener, ready) }()
	return <-failed
}

// seeded reports whether the kernel's generator needs no device any more.
func seeded() bool {
	_, err := unix.Getrandom(make([]byte, 1), unix.GRND_NONBLOCK)
	return err == nil
}

// serve answers calls until the listener is closed.
func serve(svc agentv1.AgentService, l *session.Listener, failed chan<- error) {
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(intercept))
	if err == nil {
		agentv1.RegisterAgentService(server, svc)
		err = server.Serve(context.Background(), l)
	}
	failed <- fmt.Errorf("serve agent: %w", err)
}

// intercept gives errors their class on the wire and keeps a panic of one call from
// ending the guest.
func intercept(ctx context.Context, decode ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			console("panic in %s: %v\n%s", info.FullMethod, p, debug.Stack())
			err = errgrpc.ToGRPC(fmt.Errorf("%s: panic: %v: %w", info.FullMethod, p, errdefs.ErrInternal))
		}
	}()
	resp, err = method(ctx, decode)
	if err != nil && errors.Is(err, errdefs.ErrInternal) {
		console("%s: %v", info.FullMethod, err)
	}
	return resp, errgrpc.ToGRPC(err)
}
