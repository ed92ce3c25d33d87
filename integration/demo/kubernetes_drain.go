package demo

import (
	"context"
	"fmt"

	"godwit.dev/godwit/integration/observer"
)

// drain has kubectl drain the VM's node, with one TCP connection open to the VM, and a budget that allows no
// disruption.
func (d *kubernetesDemo) drain(ctx context.Context, home, away string) error {
	address, err := d.c.Kubectl(ctx, "get", "gvm", "shop", "-o", "jsonpath={.status.addresses[0]}")
	if err != nil {
		return err
	}
	budget, err := d.c.OneAlways(ctx, "shop")
	if err != nil {
		return err
	}
	d.say("wire: one TCP connection to %s is opened, and asked all the time", address)
	line, err := observer.Call(ctx, d.c.Dial, address, stepTimeout())
	if err != nil {
		return err
	}
	defer line.HangUp()
	d.say("kubectl drain %s: a PodDisruptionBudget allows no disruption", home)
	for _, n := range d.c.Nodes() {
		if n.Name != home {
			continue
		}
		if out, err := d.c.Drain(ctx, n); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	for _, what := range []string{"jsonpath={.status.owner.node}=" + away, "condition=Ready"} {
		if err := d.wait(ctx, what); err != nil {
			return err
		}
	}
	yes := true
	d.result.Drained = &yes
	if err := d.look(ctx, away); err != nil {
		return err
	}
	if err := observer.Pause(ctx, settle); err != nil {
		return err
	}
	said, was := line.HangUp(), d.last
	if err := d.look(ctx, away); err != nil {
		return err
	}
	tcp := said.Err == nil && said.Counter > was.Counter
	d.result.TCPOK = &tcp
	d.say("wire: the TCP connection answered %d times, the longest answer took %.0f ms; its end: %v", said.Asked,
		ms(said.Longest), said.Err)
	err = budget.Held()
	held := err == nil
	d.result.PDBHeld = &held
	d.say("budget: held in each of its states: %t", held)
	return err
}
