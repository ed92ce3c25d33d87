package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// templateTimeout is how long the node's daemon may take for a template.
const templateTimeout = 4 * time.Minute

func dropIn(dir, text string) error {
	dir = filepath.Join(dir, "config.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bench.toml"), []byte(text), 0o600)
}

// bootDir has the node's configuration, but VMs boot.
func (b *bench) bootDir() string { return filepath.Join(b.h.Dir, "boot") }

func (b *bench) withoutTemplates() error {
	data, err := os.ReadFile(b.node.Config)
	if err != nil {
		return err
	}
	if err := dropIn(b.bootDir(), "[guest]\ncmdline = '"+noBounce+"'\n[template]\nmode = 'off'\n"); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.bootDir(), "config.toml"), data, 0o600)
}

// ctrRun times a container that starts from a template, from the command to its first
// output. The warm-up runs it until there is one.
func (b *bench) ctrRun(ctx context.Context) error {
	if b.round == warmup {
		return harness.Poll(ctx, templateTimeout, func(ctx context.Context) error {
			if _, _, err := b.echo(ctx); err != nil {
				return err
			}
			return b.started("clone")
		})
	}
	first, end, err := b.echo(ctx)
	if err != nil {
		return err
	}
	b.note("start.ctr_run", ms(first))
	b.note("start.cycle", ms(end))
	return b.started("clone")
}

// ctrBoot times the same without templates: the first start of its kind on a node.
func (b *bench) ctrBoot(ctx context.Context) error {
	first, _, err := b.echo(ctx, "--runtime-config-path", filepath.Join(b.bootDir(), "config.toml"))
	if err != nil {
		return err
	}
	b.note("start.boot", ms(first))
	return b.started("boot")
}

func (b *bench) echo(ctx context.Context, flags ...string) (first, end time.Duration, err error) {
	vm := b.name("start")
	args := append([]string{"--address", b.node.Socket, "run", "--rm", "--runtime", runtimeName}, flags...)
	first, end, err = b.timed(ctx, "ctr", append(args, images.Busybox, vm, "/bin/echo", mark)...)
	if err != nil {
		return 0, 0, err
	}
	return first, end, b.forget(ctx, vm)
}

// started looks at how the last VM was started, as the node has noted it.
func (b *bench) started(want string) error { return b.startedOn(b.node, want) }

func (b *bench) startedOn(node *harness.Node, want string) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s/lib/starts.jsonl", node.PID(), node.Dir))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	var last struct{ Mode string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		return err
	}
	if last.Mode != want {
		return fmt.Errorf("the last start was a %s, not a %s, of %s", last.Mode, want, lines)
	}
	return nil
}
