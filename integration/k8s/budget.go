package k8s

import (
	"context"
	"fmt"
	"strings"
)

// Budget is a PodDisruptionBudget that kubectl watches.
type Budget struct{ watch *Watch }

// budgetState is a line of the log.
const budgetState = `jsonpath={.status.desiredHealthy} {.status.currentHealthy} {.status.disruptedPods}{"\n"}`

// OneAlways makes a budget that wants one healthy pod of those with label app=NAME, which there is, and watches it.
func (c *Cluster) OneAlways(ctx context.Context, name string) (*Budget, error) {
	if _, err := c.Kubectl(ctx, "create", "poddisruptionbudget", name, "--selector=app="+name,
		"--min-available=1"); err != nil {
		return nil, err
	}
	for _, state := range []string{"currentHealthy}=1", "disruptionsAllowed}=0"} {
		if _, err := c.Kubectl(ctx, "wait", "poddisruptionbudget/"+name, "--for=jsonpath={.status."+state,
			"--timeout="+readyTime.String()); err != nil {
			return nil, err
		}
	}
	watch, err := c.Watch(ctx, "budget", budgetState, "poddisruptionbudget", name)
	return &Budget{watch: watch}, err
}

// Held ends the watch. It fails if in one of the states a pod was missing, or the budget was taken.
func (b *Budget) Held() error {
	if err := b.watch.End(); err != nil {
		return err
	}
	states, err := b.watch.States()
	if err != nil {
		return err
	}
	for _, state := range states {
		var desired, healthy int
		_, err := fmt.Sscan(state, &desired, &healthy)
		taken := strings.Fields(state)[2:]
		if err != nil || desired != 1 || healthy < desired || len(taken) > 0 && taken[0] != "{}" {
			return fmt.Errorf("the budget did not hold: of its states %q, this one: %q", states, state)
		}
	}
	return nil
}
