package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// stays keeps a container after its mark.
const stays = "exec sleep 100000"

// handlers of pods; the second one is the control.
var handlers = []string{"godwit", "runc"}

// pods measures a pod, a VM of one container, and a pod of runc, on one node; and pods that move to another one.
func (b *bench) pods(ctx context.Context) error {
	if b.podNode == nil {
		if err := b.openPods(ctx); err != nil {
			return fmt.Errorf("make the nodes of pods: %w", err)
		}
	}
	if b.round == warmup {
		if err := harness.Poll(ctx, templateTimeout, b.podFromTemplate); err != nil {
			return fmt.Errorf("a pod from a template: %w", err)
		}
		if err := harness.Poll(ctx, templateTimeout, b.podCtrRun); err != nil {
			return fmt.Errorf("a container from a template: %w", err)
		}
	}
	for i := range handlers { // neither always profits from what the other has warmed
		if err := b.onePod(ctx, handlers[(i+b.round+2)%2]); err != nil {
			return err
		}
	}
	return errors.Join(b.podCtrRun(ctx), b.podExec(ctx), b.gaps(ctx), b.configMapWake(ctx))
}

// podFromTemplate fails unless a pod starts as a copy of a template.
func (b *bench) podFromTemplate(ctx context.Context) error {
	p, err := b.podNode.run(ctx, b.name("warm"), handlers[0])
	if err != nil {
		return err
	}
	return errors.Join(b.startedOn(b.podNode.Node, "clone"), p.remove(ctx))
}

// onePod measures the life of a pod.
func (b *bench) onePod(ctx context.Context, handler string) error {
	godwit := handler == handlers[0]
	note := func(name string, v float64) {
		if godwit {
			b.note(name, v)
		} else {
			b.note(name+"_runc", v)
		}
	}
	p, err := b.podNode.run(ctx, b.name(handler), handler)
	if err != nil {
		return err
	}
	note("pods.ready", ms(p.ready))
	if godwit {
		if err := b.startedOn(b.podNode.Node, "clone"); err != nil {
			return err
		}
	}
	var target string
	for i := range podContainers {
		id, first, err := p.container(ctx, fmt.Sprintf("c%d", i), stays, nil)
		if err != nil {
			return err
		}
		switch i {
		case 0:
			target = id
			note("pods.start", ms(first))
		case 1:
			note("pods.second_start", ms(first))
		}
	}
	err = b.probes(ctx, target, note) // the first execs of a guest, as those of podExec
	if err == nil && godwit {
		err = errors.Join(b.podMemory(), b.probeCPU(ctx, target), b.configMap(ctx, p))
	}
	return errors.Join(err, p.remove(ctx))
}

// probes times exec probes, and crictl alone.
func (b *bench) probes(ctx context.Context, target string, note func(string, float64)) error {
	var through, alone []float64
	for range execs {
		begun := time.Now()
		if _, err := b.podNode.call(ctx, "exec", "--sync", target, "/bin/echo", mark); err != nil {
			return err
		}
		through = append(through, ms(time.Since(begun)))
		begun = time.Now()
		if _, err := b.podNode.call(ctx, "version"); err != nil {
			return err
		}
		alone = append(alone, ms(time.Since(begun)))
	}
	note("pods.probe", median(through))
	note("pods.crictl_only", median(alone))
	return nil
}

// podCtrRun times a VM of one container with the same network.
func (b *bench) podCtrRun(ctx context.Context) error {
	n := b.podNode
	first, _, err := b.timedOn(ctx, n.Node, "ctr", n.CtrArgs("--namespace", "k8s.io", "run", "--rm", "--cni", "--runtime",
		runtimeName, podImage, fmt.Sprintf("%s-%d", b.name("run"), time.Now().UnixNano()), "/bin/echo", mark)...)
	if err != nil {
		return err
	}
	b.note("pods.ctr_run", ms(first))
	return b.startedOn(n.Node, "clone")
}

// podExec times processes in a VM of one container, and ctr alone.
func (b *bench) podExec(ctx context.Context) error {
	n, vm := b.podNode, b.name("exec")
	ctr := func(args ...string) (string, error) {
		return n.RunCtr(ctx, append([]string{"--namespace", "k8s.io"}, args...)...)
	}
	if _, err := ctr("run", "-d", "--runtime", runtimeName, podImage, vm, "/bin/sleep", "100000"); err != nil {
		return err
	}
	var through, alone []float64
	for i := range execs {
		_, end, err := b.timedOn(ctx, n.Node, "ctr", n.CtrArgs("--namespace", "k8s.io", "task", "exec", "--exec-id",
			fmt.Sprintf("e%d", i), vm, "/bin/echo", mark)...)
		if err != nil {
			return err
		}
		through = append(through, ms(end))
		begun := time.Now()
		if _, err := ctr("version"); err != nil {
			return err
		}
		alone = append(alone, ms(time.Since(begun)))
	}
	b.note("pods.exec", median(through))
	b.note("pods.ctr_only", median(alone))
	if err := b.podExecAPI(ctx, vm); err != nil {
		return err
	}
	_, err := ctr("task", "rm", "--force", vm)
	if err == nil {
		_, err = ctr("container", "rm", vm)
	}
	return err
}
