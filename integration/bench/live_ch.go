package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
	"godwit.dev/godwit/vmm/vmmtest"
)

// chInit brings the guest's network up, and runs the probe as godwit's guest does.
const chInit = `#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "$module"; done </lib/list
$bb ip link set lo up
$bb ip address add %s dev eth0
$bb ip link set eth0 up
$bb mkdir -p /tmp
exec /bin/probe -file /tmp/journal %s
`

const chTap = "rivalch"

// chPort is where Cloud Hypervisor waits for its own migration.
const chPort = 7999

// chRival is a VM of Cloud Hypervisor alone, which moves and sleeps by the VMM's own means.
type chRival struct {
	b     *liveBench
	dir   string
	sides []*chSide
}

// chSide is one of its processes.
type chSide struct {
	node   *harness.Node
	cmd    *exec.Cmd
	dir    string
	ended  chan struct{}
	err    error // valid once it has ended
	output bytes.Buffer
}

// chOwn measures the VMM's own live migration from node a to b. With restores it measures its own snapshot and restore
// there too.
func (b *liveBench) chOwn(ctx context.Context, s shape, restores bool) (err error) {
	dir, err := os.MkdirTemp(b.h.Dir, "rival")
	if err != nil {
		return err
	}
	r := &chRival{b: b, dir: dir}
	defer func() { err = errors.Join(err, r.end(context.WithoutCancel(ctx))) }()
	initrd, err := chInitrd(dir, s)
	if err != nil {
		return err
	}
	for _, n := range b.h.Nodes() {
		if err := chLink(ctx, n); err != nil {
			return err
		}
	}
	root, err := harness.Root()
	if err != nil {
		return err
	}
	b.ports.Forget()
	from, err := r.start(b.node, "--kernel", filepath.Join(root, "bin/guest/vmlinuz"), "--initramfs", initrd,
		"--cmdline", "console=ttyS0 quiet "+noBounce+" "+harness.NestedCmdline, "--cpus", "boot=1",
		"--memory", fmt.Sprintf("size=%dM", s.ram), "--serial", "tty", "--console", "off",
		"--net", "id=net0,mac="+rivalMAC+",tap="+chTap)
	if err != nil {
		return err
	}
	if err := b.arrived(ctx, 0); err != nil {
		return errors.Join(err, from.said())
	}
	if err := observer.Pause(ctx, settle); err != nil {
		return err
	}
	to, err := r.migrate(ctx, from, s)
	if err != nil || !restores {
		return err
	}
	return r.restore(ctx, to, s)
}

// migrate moves the VM over TCP and notes the gap.
func (r *chRival) migrate(ctx context.Context, from *chSide, s shape) (*chSide, error) {
	b := r.b
	to, err := r.start(b.there)
	if err != nil {
		return nil, err
	}
	received := make(chan error, 1)
	go func() {
		received <- to.call(ctx, "vm.receive-migration", fmt.Sprintf(`{"receiver_url":"tcp:%s:%d"}`, b.there.Address, chPort))
	}()
	if err := to.event(ctx, "migration-receive-ready"); err != nil {
		return nil, err
	}
	b.ports.Forget()
	begun := time.Now()
	if err := from.call(ctx, "vm.send-migration", fmt.Sprintf(`{"destination_url":"tcp:%s:%d"}`, b.there.Address,
		chPort)); err != nil {
		return nil, err
	}
	select {
	case err := <-received:
		if err != nil {
			return nil, errors.Join(err, from.said(), to.said())
		}
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("move a VM by Cloud Hypervisor itself: %w", ctx.Err()), from.said(), to.said())
	}
	took := time.Since(begun)
	if err := b.arrived(ctx, 1); err != nil {
		return nil, errors.Join(err, from.said(), to.said())
	}
	c, err := b.ports.Cross(0, 1)
	if err != nil {
		return nil, err
	}
	b.say("  Cloud Hypervisor's own: gap %.1f ms, %d ticks lost, %.1f s in all", ms(c.Gap), c.Lost, took.Seconds())
	b.note("ch_gap_ms_"+s.name, ms(c.Gap))
	return to, nil
}

// restore puts the VM to sleep in files and notes the time from the command to its first beacon.
func (r *chRival) restore(ctx context.Context, at *chSide, s shape) error {
	b := r.b
	files := filepath.Join(r.dir, "snapshot")
	if err := os.Mkdir(files, 0o700); err != nil {
		return err
	}
	if err := at.call(ctx, "vm.pause", ""); err != nil {
		return err
	}
	if err := at.call(ctx, "vm.snapshot", fmt.Sprintf(`{"destination_url":"file://%s"}`, files)); err != nil {
		return errors.Join(err, at.said())
	}
	at.kill()
	b.ports.Forget()
	begun := time.Now()
	again, err := r.start(b.there, "--restore", "source_url=file://"+files+",resume=true")
	if err != nil {
		return err
	}
	took, err := b.beacon(ctx, begun)
	if err != nil {
		return errors.Join(err, again.said())
	}
	b.say("  Cloud Hypervisor's own restore: %.1f ms to the first beacon", ms(took))
	b.note("ch_restore_ms_"+s.name, ms(took))
	return nil
}

// beacon waits for the first tick at any node and answers how long it took.
func (b *liveBench) beacon(ctx context.Context, begun time.Time) (time.Duration, error) {
	for !b.ports.Arrived(0) && !b.ports.Arrived(1) {
		if err := observer.Pause(ctx, 2*time.Millisecond); err != nil {
			return 0, fmt.Errorf("the guest does not tick: %w", err)
		}
	}
	return time.Since(begun), nil
}

// chInitrd is the guest: modules and busybox of the VMM suite's, with the probe.
func chInitrd(dir string, s shape) (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "initrd")
	if err := vmmtest.BuildInitrd(path, "/bin/busybox", filepath.Join(root, "bin/guest/modules")); err != nil {
		return "", err
	}
	base, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	probe, err := os.ReadFile(filepath.Join(root, "bin/integration/probe"))
	if err != nil {
		return "", err
	}
	var c cpio // after the other: its init takes the place of that one's
	init := fmt.Sprintf(chInit, rivalAddress, strings.Join(probeFlags(s), " "))
	c.entry("bin/probe", unix.S_IFREG|0o755, probe, 0, 0)
	c.entry("init", unix.S_IFREG|0o755, []byte(init), 0, 0)
	c.entry("TRAILER!!!", 0, nil, 0, 0)
	base = append(base, make([]byte, -len(base)&3)...)
	return path, os.WriteFile(path, append(base, c.Bytes()...), 0o644)
}

// chLink makes the VM's tap on a node.
func chLink(ctx context.Context, n *harness.Node) error {
	for _, args := range [][]string{{"tuntap", "add", "dev", chTap, "mode", "tap", "vnet_hdr"},
		{"link", "set", chTap, "master", "gw0", "up"}} {
		if _, err := n.Run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// start runs a VMM on a node and waits until it answers, unless it has a VM to run.
func (r *chRival) start(n *harness.Node, args ...string) (*chSide, error) {
	s := &chSide{node: n, dir: filepath.Join(r.dir, fmt.Sprint(len(r.sides))), ended: make(chan struct{})}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, err
	}
	binary, err := exec.LookPath(chBinary())
	if err != nil {
		return nil, err
	}
	s.cmd = n.Command(context.Background(), binary, append([]string{"--api-socket", s.socket(), "--event-monitor",
		"path=" + s.events()}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if err := n.Enter(s.cmd.Start); err != nil {
		return nil, fmt.Errorf("start Cloud Hypervisor: %w", err)
	}
	r.sides = append(r.sides, s)
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// end ends all processes and removes what they had.
func (r *chRival) end(ctx context.Context) error {
	for _, s := range r.sides {
		s.kill()
	}
	for _, n := range r.b.h.Nodes() {
		_, _ = n.Run(ctx, "ip", "link", "delete", chTap)
	}
	return os.RemoveAll(r.dir)
}

func (s *chSide) kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

func (s *chSide) socket() string { return filepath.Join(s.dir, "api") }
func (s *chSide) events() string { return filepath.Join(s.dir, "events") }

// said ends the process and answers what it wrote.
func (s *chSide) said() error {
	s.kill()
	return fmt.Errorf("cloud hypervisor on node %s: %w: %s", s.node.Name, s.err, s.output.Bytes())
}

// event waits for one.
func (s *chSide) event(ctx context.Context, name string) error {
	for {
		text, err := os.ReadFile(s.events())
		if err == nil && bytes.Contains(text, []byte(name)) {
			return nil
		}
		if wait := observer.Pause(ctx, 10*time.Millisecond); wait != nil {
			return fmt.Errorf("wait for Cloud Hypervisor's %s: %w", name, errors.Join(wait, err))
		}
	}
}

// call makes a request, once the socket is there.
func (s *chSide) call(ctx context.Context, action, body string) error {
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = harness.Poll(ctx, time.Minute, func(ctx context.Context) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "unix", s.socket())
			return err
		})
		return conn, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://vmm/api/v1/"+action, strings.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("cloud hypervisor: %s: %w", action, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
		return fmt.Errorf("cloud hypervisor: %s: %s: %s", action, resp.Status, text)
	}
	return nil
}
