package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
)

// exec times processes started with ctr in a running VM, and ctr alone, and looks at the memory of its shim.
func (b *bench) exec(ctx context.Context) error {
	vm := b.name("exec")
	if _, err := b.node.RunCtr(ctx, "run", "-d", "--runtime", runtimeName, images.Busybox, vm, "/bin/sleep",
		"100000"); err != nil {
		return err
	}
	var through, alone []float64
	for i := range execs {
		_, end, err := b.timed(ctx, "ctr", "--address", b.node.Socket, "task", "exec", "--exec-id", fmt.Sprintf("e%d", i), vm,
			"/bin/echo", mark)
		if err != nil {
			return err
		}
		through = append(through, ms(end))
		begun := time.Now()
		if _, err := b.node.RunCtr(ctx, "version"); err != nil {
			return err
		}
		alone = append(alone, ms(time.Since(begun)))
	}
	b.note("exec.ctr", median(through))
	b.note("exec.ctr_only", median(alone))
	pids, err := b.shims()
	if err != nil {
		return err
	}
	if err := b.noteMemory("rss.shim", pids...); err != nil {
		return err
	}
	return b.remove(ctx, vm)
}

// agent asks a process inside the node, so that its VM ends with the node whatever
// happens to this one.
func (b *bench) agent(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	out, err := b.node.Run(ctx, b.Self[0], append(b.Self[1:len(b.Self):len(b.Self)], root)...)
	if err != nil {
		return fmt.Errorf("measure the agent: %w", err)
	}
	var times AgentTimes
	if err := json.Unmarshal([]byte(out), &times); err != nil {
		return fmt.Errorf("measure the agent: %w", err)
	}
	if len(times.Exec) != execs || len(times.Call) != execs {
		return fmt.Errorf("measure the agent: %d and %d values", len(times.Exec), len(times.Call))
	}
	b.note("exec.agent", median(times.Exec))
	b.note("exec.agent_call", median(times.Call))
	return nil
}
