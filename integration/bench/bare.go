package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/vmm/qemu"
)

// execs are repeated within a round; the round's value is their median.
const execs = 5

// bareInit is the smallest user space that prints a line, and runs a program for every
// line that it reads.
const bareInit = "#!/bin/busybox sh\necho " + mark + "\nwhile read n; do /bin/busybox echo ran $n; done\n"

// bareInitramfs writes a cpio archive of it. It is small and not compressed.
func bareInitramfs(dir string) (string, error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", fmt.Errorf("read busybox (Debian package busybox-static): %w", err)
	}
	var c cpio
	c.entry("bin", unix.S_IFDIR|0o755, nil, 0, 0)
	c.entry("dev", unix.S_IFDIR|0o755, nil, 0, 0)
	c.entry("dev/console", unix.S_IFCHR|0o600, nil, 5, 1)
	c.entry("bin/busybox", unix.S_IFREG|0o755, busybox, 0, 0)
	c.entry("init", unix.S_IFREG|0o755, []byte(bareInit), 0, 0)
	c.entry("TRAILER!!!", 0, nil, 0, 0)
	path := filepath.Join(dir, "bare.cpio")
	return path, os.WriteFile(path, c.Bytes(), 0o644)
}

// cpio is an archive for a kernel to boot with; its last entry is called TRAILER!!!.
type cpio struct{ bytes.Buffer }

func (c *cpio) entry(name string, mode uint32, data []byte, major, minor int) {
	fmt.Fprintf(c, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name)
	c.pad()
	c.Write(data)
	c.pad()
}

func (c *cpio) pad() { c.Write(make([]byte, -c.Len()&3)) }

// bareBoot times bare QEMU with the kernel, machine, CPU and RAM that a container has by default, to its first
// user-space line. After that it times programs started over its serial port.
func (b *bench) bareBoot(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	vmlinuz, _, cmdline, err := kernel(root)
	if err != nil {
		return err
	}
	cmd := b.node.Command(ctx, "qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none",
		"-machine", b.facts.Machine, "-accel", b.facts.Accel, "-cpu", qemu.Model(b.facts.CPU, b.facts.Accel), "-smp", "1",
		"-m", "512",
		"-kernel", vmlinuz, "-initrd", b.bare, "-append", cmdline,
		"-serial", "stdio", "-no-reboot")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begun := time.Now()
	if err := b.node.Enter(cmd.Start); err != nil {
		return fmt.Errorf("start bare QEMU: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewReader(out)
	if err := until(lines, mark); err != nil {
		return fmt.Errorf("boot bare QEMU: %w: %s", errors.Join(err, ctx.Err()), stderr.Bytes())
	}
	b.note("start.bare", ms(time.Since(begun)))
	var each []float64
	for i := range execs {
		begun := time.Now()
		if _, err := fmt.Fprintf(in, "%d\n", i); err != nil {
			return err
		}
		if err := until(lines, fmt.Sprintf("ran %d", i)); err != nil {
			return fmt.Errorf("run a program in bare QEMU: %w", err)
		}
		each = append(each, ms(time.Since(begun)))
	}
	b.note("exec.bare", median(each))
	b.note("pods.exec_bare", median(each))
	return nil
}

// until reads lines up to the one that ends in want.
func until(r *bufio.Reader, want string) error {
	for {
		line, err := r.ReadString('\n')
		if strings.HasSuffix(strings.TrimSpace(line), want) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("it ended before %q", want)
		}
		if err != nil {
			return err
		}
	}
}
