package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	containerd "github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"godwit.dev/godwit/shim/rootfs"
	"godwit.dev/godwit/shim/sandboxapi"
)

// maxInput bounds what containerd may send on stdin.
const maxInput = 10 << 20

// params are what start was told, by flags and, since containerd 2.3, on stdin.
type params struct {
	namespace, id, address string
	debug                  bool
	socketDir              string
	options                *anypb.Any // of the runtime handler; nil: none
}

// Start makes the shim's socket, starts the serving process on it and prints the answer. The
// answer is JSON because containerd before 2.3 knows no other form. Nothing may go to stderr on
// success because containerd reads both streams as one.
func Start(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	b, err := parseStart(args, stdin)
	if err != nil {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, b.namespace)
	if err := linkSocketDir(b.socketDir); err != nil {
		return err
	}
	if err := keepOptions(b.options); err != nil {
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
		debug, unheard := listen(ctx, b, true) // the deferred calls look at err
		if unheard != nil && !errors.Is(unheard, errServed) {
			return unheard
		}
		if unheard == nil {
			defer debug.close(&err)
			files = append(files, debug.file)
		}
	}
	if err := serve(b, files); err != nil {
		return err
	}
	return answer(stdout, main.address)
}

func parseStart(args []string, stdin io.Reader) (*params, error) {
	b := &params{socketDir: filepath.Join(defaults.DefaultStateDir, "s")}
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
	var told bootapi.BootstrapParams
	if proto.Unmarshal(data, &told) != nil || told.GetInstanceID() != b.id {
		return b, nil
	}
	if told.GetSocketDir() != "" {
		b.socketDir = told.GetSocketDir()
	}
	if told.GetContainerdGrpcAddress() != "" {
		b.address = told.GetContainerdGrpcAddress()
	}
	for _, e := range told.GetExtensions() {
		if e.GetValue().MessageIs(new(runtimeoptions.Options)) {
			b.options = e.GetValue()
		}
	}
	level := told.GetLogLevel()
	b.debug = b.debug || level == bootapi.LogLevel_LOG_LEVEL_DEBUG || level == bootapi.LogLevel_LOG_LEVEL_TRACE
	return b, nil
}

// keepOptions notes the options for the sandbox API, whose bundles have no config.json: it does not bring them again.
func keepOptions(options *anypb.Any) error {
	if options == nil {
		return nil
	}
	if _, err := os.Lstat("config.json"); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return sandboxapi.KeepOptions(".", options)
}

// linkSocketDir tells the serving process, which gets no parameters, where its socket
// lies, so that it can remove it.
func linkSocketDir(dir string) error {
	if err := os.Remove("s"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace socket directory link: %w", err)
	}
	return os.Symlink(dir, "s")
}

// serve starts the long-lived process.
func serve(b *params, files []*os.File) error {
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
	if err := containerd.AdjustOOMScore(cmd.Process.Pid); err != nil {
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
