package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/continuity/pkg/ext4"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu"
)

// AgentTimes are milliseconds that AgentMain prints as JSON.
type AgentTimes struct {
	Exec []float64 `json:"exec"`
	Call []float64 `json:"call"`
}

const agentRAM = 512 * mib

// AgentMain boots a VM of its own, without containerd and shim, and times the agent.
// root is the repository: the working directory is the node's.
func AgentMain(ctx context.Context, root string, out io.Writer) (err error) {
	// The node's own tmpfs, which ends with the node.
	dir, err := os.MkdirTemp("/run", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cfg, console, err := agentConfig(ctx, root, dir)
	if err != nil {
		return err
	}
	driver, err := qemu.New(qemu.Driver{})
	if err != nil {
		return err
	}
	m, err := driver.Start(ctx, *cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Kill(context.WithoutCancel(ctx))) }()
	if err := m.Resume(ctx); err != nil {
		return err
	}
	a, err := client.Connect(ctx, cfg.Agent, client.Options{Console: console})
	if err != nil {
		return err
	}
	defer a.Close()
	times, err := timeAgent(ctx, a)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(times)
}

// agentConfig makes the VM's files: RAM, an erofs layer with busybox, a writable disk.
func agentConfig(ctx context.Context, root, dir string) (*vmm.Config, string, error) {
	return guestConfig(ctx, root, dir, agentRAM, "")
}

// guestConfig is agentConfig with so much RAM, and a probe unless that is empty.
func guestConfig(ctx context.Context, root, dir string, size uint64, probe string) (*vmm.Config, string, error) {
	vmlinuz, initrd, cmdline, err := kernel(root)
	if err != nil {
		return nil, "", err
	}
	tree, layer, disk := filepath.Join(dir, "tree"), filepath.Join(dir, "layer"), filepath.Join(dir, "rw")
	for _, d := range []string{"bin", "dev", "proc", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(tree, d), 0o755); err != nil {
			return nil, "", err
		}
	}
	commands := [][]string{{"cp", "/bin/busybox", tree + "/bin/busybox"}, {"mkfs.erofs", "--quiet", layer, tree}}
	if probe != "" {
		commands = append([][]string{{"cp", probe, tree + "/bin/probe"}}, commands...)
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, "", fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	if err := ext4.Create(disk, 256*mib, ext4.WithDir("/upper", 0o755, 0, 0),
		ext4.WithDir("/work", 0o755, 0, 0)); err != nil {
		return nil, "", err
	}
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC) // no tmpfs bounds it
	if err != nil {
		return nil, "", err
	}
	ram := os.NewFile(uintptr(fd), "ram")
	if err := errors.Join(ram.Truncate(int64(size)), ram.Chown(config.Default().VMM.FirstUser, -1)); err != nil {
		return nil, "", err
	}
	console := filepath.Join(dir, "console")
	log, err := os.Create(console)
	if err != nil {
		return nil, "", err
	}
	cfg := &vmm.Config{
		Name: "agent", Dir: dir, Memory: size, VCPUs: 1, RAM: ram, Console: log, Agent: filepath.Join(dir, "agent.sock"),
		Kernel: vmlinuz, Initrd: initrd, Cmdline: cmdline,
	}
	for i, path := range []string{layer, disk} {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, "", err
		}
		id := filepath.Base(path)
		cfg.Disks = append(cfg.Disks, vmm.Disk{ID: id, Serial: id, Slot: qemu.FirstDiskSlot + i, File: f,
			ReadOnly: path == layer})
	}
	return cfg, console, nil
}

// bareSetup is what the agent is told of a guest that has no shim.
func bareSetup() *agentv1.SetupRequest {
	return &agentv1.SetupRequest{
		Layers:   []*agentv1.Disk{{Serial: "layer", Type: "erofs", ReadOnly: true}},
		Writable: &agentv1.Disk{Serial: "rw", Type: "ext4"}, Hostname: "bench",
		Mounts: []*agentv1.Mount{{Type: "proc", Source: "proc", Target: "/proc"},
			{Type: "tmpfs", Source: "tmpfs", Target: "/dev"}},
	}
}

func timeAgent(ctx context.Context, a *client.Agent) (*AgentTimes, error) {
	if _, err := a.Setup(ctx, bareSetup()); err != nil {
		return nil, err
	}
	if err := start(ctx, a, "", "sleep", "100000"); err != nil {
		return nil, err
	}
	var t AgentTimes
	for i := range execs {
		begun := time.Now()
		if err := run(ctx, a, fmt.Sprintf("e%d", i)); err != nil {
			return nil, err
		}
		t.Exec = append(t.Exec, ms(time.Since(begun)))
		begun = time.Now()
		if _, err := a.Info(ctx, &agentv1.InfoRequest{}); err != nil {
			return nil, err
		}
		t.Call = append(t.Call, ms(time.Since(begun)))
	}
	return &t, nil
}

func start(ctx context.Context, a *client.Agent, id string, args ...string) error {
	p, err := json.Marshal(specs.Process{Args: append([]string{"/bin/busybox"}, args...), Cwd: "/",
		Capabilities: &specs.LinuxCapabilities{}})
	if err != nil {
		return err
	}
	_, err = a.Start(ctx, &agentv1.StartRequest{Id: id, Process: p, Stdout: true})
	return err
}

// run runs a process to its end, with what it prints.
func run(ctx context.Context, a *client.Agent, id string) error {
	if err := start(ctx, a, id, "echo", mark); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := a.NewStreams(id, client.Offsets{}).CopyStdout(ctx, &out); err != nil {
		return err
	}
	e, err := a.WaitExit(ctx, id)
	if err != nil {
		return err
	}
	if e.Status != 0 || !bytes.Contains(out.Bytes(), []byte(mark)) {
		return fmt.Errorf("exec %s: exit status %d, output %q", id, e.Status, out.Bytes())
	}
	_, err = a.Remove(ctx, &agentv1.RemoveRequest{Id: id})
	return err
}
