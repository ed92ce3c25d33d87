package shim

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"

	machinev1 "godwit.dev/godwit/api/machine/v1"
	"godwit.dev/godwit/api/trace"
	"godwit.dev/godwit/internal/failpoint"
	"godwit.dev/godwit/internal/link"
	"godwit.dev/godwit/internal/retry"
)

// machineSocket is the VM's own socket, where godwitd finds it without containerd.
type machineSocket struct {
	log       *slog.Logger
	answering atomic.Bool // an operation was cut short by the VM's end, and who ordered it is to hear that

	mu     sync.Mutex
	server *ttrpc.Server // nil: no call is served
}

// serve answers godwitd with the machine service of the VM that find answers.
func (vm *VM) serve(find func() (*VM, error)) error {
	cfg := vm.host.Config
	var record trace.Recorder = trace.Off{} // of what godwitd orders, for godwitd to send on
	if cfg.Tracing.Endpoint != "" {
		record = trace.InState(cfg.StateDir)
	}
	return vm.socket.serve(vm.life, cfg.MachineSocket(vm.namespace, vm.id), record, &machineService{find: find})
}

// serve listens on path, until close or the end of ctx.
func (s *machineSocket) serve(ctx context.Context, path string, record trace.Recorder,
	m machinev1.MachineService) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := removeFile(path); err != nil {
		return err
	}
	l, err := shim.NewSocket("unix://" + path)
	if err != nil {
		return err
	}
	traced := ttrpc.WithChainUnaryServerInterceptor(trace.Last(record))
	server, err := ttrpc.NewServer(append(failpoint.Server(), traced,
		ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))...)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	machinev1.RegisterMachineService(server, m)
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	go func() {
		if err := server.Serve(ctx, link.RetryAccept(l)); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) &&
			!errors.Is(err, net.ErrClosed) {
			s.log.Error("serve machine socket", "error", err)
		}
	}()
	return nil
}

// answerPause is more than an answer takes to be out.
const answerPause = time.Second

// close may be called more than once. It returns early when ctx, the life of the shim, ends.
func (s *machineSocket) close(ctx context.Context) error {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return nil
	}
	if s.answering.Load() { // before the socket is gone
		retry.Sleep(ctx, answerPause)
	}
	return server.Close()
}
