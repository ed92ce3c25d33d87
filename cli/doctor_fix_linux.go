package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/internal/durable"
	"godwit.dev/godwit/vmm/kvm"
)

// host is this host as repairs reach it; tests have another one.
type host struct {
	cfg        *config.Config
	configPath string // as the user gave it; empty: the default
	systemd    string // is there while systemd runs the host
	logs       string // of programs that are started without it
	cpuinfo    string
	proc       string
	tun        string
	kvm        kvm.Host
	run        func(ctx context.Context, name string, args ...string) error
}

func newHost(opts *options) repairer {
	cfg, err := config.Load(opts.config)
	if err != nil || opts.socket != "" { // the flags name another daemon than this configuration's
		cfg = nil
	}
	return &host{cfg: cfg, configPath: opts.config, systemd: booted, logs: "/var/log", cpuinfo: "/proc/cpuinfo",
		proc: "/proc", tun: tunDevice, kvm: kvm.Default, run: runProgram}
}

// runProgram runs a program to its end; its error has what it said.
func runProgram(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil && text != "" {
		err = fmt.Errorf("%s: %w", lastLine(text), err)
	}
	return err
}

func lastLine(text string) string {
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (h *host) repair(check string) *repair {
	if h.cfg == nil {
		return nil
	}
	switch check {
	case dirsCheck:
		return h.repairDirs()
	case keysCheck:
		return h.repairKeys()
	case dropInCheck:
		return h.repairDropIn()
	case containerdCheck:
		return h.startContainerd()
	case daemonCheck:
		return h.startDaemon()
	case kvmCheck:
		return h.loadKVM()
	case tunCheck:
		if _, err := os.Stat(h.tun); errors.Is(err, os.ErrNotExist) {
			return h.load("tun")
		}
	}
	return nil
}

// load has the kernel load a module.
func (h *host) load(module string) *repair {
	return &repair{does: "load the module " + module, hand: "modprobe " + module,
		do: func(ctx context.Context) error { return h.run(ctx, "modprobe", module) }}
}

// loadKVM is for a processor that says it can, where the module is missing. Rights to the device are not changed.
func (h *host) loadKVM() *repair {
	for flag, module := range map[string]string{"vmx": "kvm_intel", "svm": "kvm_amd"} {
		_, loaded := os.Stat(filepath.Join(h.kvm.Modules, module))
		if h.processorHas(flag) && errors.Is(loaded, os.ErrNotExist) {
			return h.load(module)
		}
	}
	return nil
}

func (h *host) processorHas(flag string) bool {
	data, err := os.ReadFile(h.cpuinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if name, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			return strings.Contains(" "+strings.TrimSpace(flags)+" ", " "+flag+" ")
		}
	}
	return false
}

// repairDirs makes missing directories, and takes the right to write from others.
func (h *host) repairDirs() *repair {
	dirs := faultyDirs(h.cfg)
	all := strings.Join(dirs, " ")
	return &repair{does: "make " + strings.Join(dirs, " and ") + " a directory that root alone writes",
		hand: "mkdir -p -m 0711 " + all + " && chown root " + all + " && chmod go-w " + all,
		do: func(context.Context) error {
			for _, dir := range dirs {
				if err := makeOwn(dir); err != nil {
					return err
				}
			}
			return nil
		}}
}

// makeOwn follows no link at its last name: who made it may be somebody else.
func makeOwn(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != owner {
		return fmt.Errorf("%s belongs to user %d, not to root", dir, st.Uid)
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777&^0o022); err != nil {
		return fmt.Errorf("change the mode of %s: %w", dir, err)
	}
	return nil
}

// repairKeys takes keys from others than root.
func (h *host) repairKeys() *repair {
	keys := openKeys(h.cfg)
	if len(keys) == 0 {
		return nil
	}
	return &repair{does: "keep others from " + strings.Join(keys, " and "),
		hand: "chmod go-rwx " + strings.Join(keys, " "),
		do: func(context.Context) error {
			for _, key := range keys {
				if err := closeKey(key); err != nil {
					return err
				}
			}
			return nil
		}}
}

// repairDropIn writes the file that names the runtime to containerd's CRI, which reads it at its next start.
func (h *host) repairDropIn() *repair {
	return &repair{does: "write " + dropInFile + ", which containerd reads when it starts again",
		hand: "copy packaging/containerd-godwit.toml there",
		do: func(context.Context) error {
			if err := os.MkdirAll(filepath.Dir(dropInFile), 0o755); err != nil {
				return err
			}
			return durable.WriteFile(dropInFile, dropIn, 0o644)
		}}
}
