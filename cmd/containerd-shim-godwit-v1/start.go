package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"godwit.dev/godwit/shim/rootfs"
)

// maxInput bounds what containerd may send on stdin.
const maxInput = 10 << 20

// bootstrap is what start was told, by flags and, since containerd 2.3, on stdin.
type bootstrap struct {
	namespace, id, address string
	debug                  bool
	socketDir              string
}

// start makes the shim's socket, starts the serving process on it and prints the answer. The
// answer is JSON because containerd before 2.3 knows no other form. Nothing may go to stderr on
// success because containerd reads both streams as one.
func start(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	b, err := parseStart(args, stdin)
	if err != nil {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, b.namespace)
	if err := linkSocketDir(b.socketDir); err != nil {
		return err
	}
	main, err := listen(ctx, b, false)
	if errors.Is(err, errServed) {
		return answer(stdout, main.address)
	}
	if err != nil {
		return err
	}
	defer main.close(&err)
	files := []*os.File{main.file}
	if b.debug {
		debug, err := listen(ctx, b, true)
		if err != nil && !errors.Is(err, errServed) {
			return err
		}
		if err == nil {
			defer debug.close(&err)
			files = append(files, debug.file)
		}
	}
	if err := serve(b, files); err != nil {
		return err
	}
	return answer(stdout, main.address)
}

func parseStart(args []string, stdin io.Reader) (*bootstrap, error) {
	b := &bootstrap{socketDir: filepath.Join(defaults.DefaultStateDir, "s")}
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&b.debug, "debug", false, "")
	flags.StringVar(&b.namespace, "namespace", "", "")
	flags.StringVar(&b.id, "id", "", "")
	flags.StringVar(&b.address, "address", "", "")
	flags.String("publish-binary", "", "")
	flags.String("bundle", "", "")
	flags.String("socket", "", "")
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("parse flags: %w", err)
	}
	if b.namespace == "" || b.id == "" {
		return nil, errors.New("start: -namespace and -id are needed")
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read bootstrap parameters: %w", err)
	}
	// An older containerd sends bare runtime options, which may well parse as another
	// message: only parameters that name this instance are believed.
	var params bootapi.BootstrapParams
	if proto.Unmarshal(data, &params) != nil || params.GetInstanceID() != b.id {
		return b, nil
	}
	if params.GetSocketDir() != "" {
		b.socketDir = params.GetSocketDir()
	}
	if params.GetContainerdGrpcAddress() != "" {
		b.address = params.GetContainerdGrpcAddress()
	}
	level := params.GetLogLevel()
	b.debug = b.debug || level == bootapi.LogLevel_LOG_LEVEL_DEBUG || level == bootapi.LogLevel_LOG_LEVEL_TRACE
	return b, nil
}

// linkSocketDir tells the serving process, which gets no parameters, where its socket
// lies, so that it can remove it.
func linkSocketDir(dir string) error {
	if err := os.Remove("s"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace socket directory link: %w", err)
	}
	return os.Symlink(dir, "s")
}

type socket struct {
	address  string
	listener *net.UnixListener
	file     *os.File
}

// close lets go of the socket; the serving process has it by then, unless *failed.
func (s *socket) close(failed *error) {
	s.listener.SetUnlinkOnClose(*failed != nil)
	s.file.Close()
	s.listener.Close()
}

var errServed = errors.New("socket is served already")

func listen(ctx context.Context, b *bootstrap, debug bool) (*socket, error) {
	address, err := shim.CreateSocketAddress(ctx, b.socketDir, b.address, b.id, debug)
	if err != nil {
		return nil, err
	}
	l, err := shim.NewSocket(address)
	if shim.SocketEaddrinuse(err) {
		is, unknown := served(address)
		if unknown != nil {
			return nil, unknown
		}
		if is {
			return &socket{address: address}, errServed
		}
		if err := shim.RemoveSocket(address); err != nil {
			return nil, fmt.Errorf("remove stale socket: %w", err)
		}
		l, err = shim.NewSocket(address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	f, err := l.File()
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &socket{address: address, listener: l, file: f}, nil
}

// serve starts the long-lived process.
func serve(b *bootstrap, files []*os.File) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"-namespace", b.namespace, "-id", b.id, "-address", b.address}
	if b.debug {
		args = append(args, "-debug")
	}
	cmd := exec.Command(self, args...)
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	if err := shim.AdjustOOMScore(cmd.Process.Pid); err != nil {
		warn(fmt.Sprintf("keep OOM score of shim: %v", err))
	}
	return cmd.Process.Release()
}

// warn writes to containerd's log of the shim: stderr belongs to the answer.
func warn(msg string) {
	f, err := os.OpenFile("log", os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "level=warning msg=%q\n", msg)
}

func answer(w io.Writer, address string) error {
	result := &bootapi.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"}
	if err := result.AddExtension(rootfs.Capabilities()); err != nil {
		return fmt.Errorf("add mount capabilities: %w", err)
	}
	// encoding/json, as containerd reads it; protobuf's own JSON has other names.
	return json.NewEncoder(w).Encode(result)
}
