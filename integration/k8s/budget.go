package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// Budget is a PodDisruptionBudget that kubectl watches.
type Budget struct {
	watch *harness.Process
	log   string // each of its states: a line
}

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
	b := &Budget{log: filepath.Join(c.Dir, "log", c.wire.Name+"-budget.log")}
	if err := os.Remove(b.log); err != nil && !errors.Is(err, os.ErrNotExist) { // of a budget before
		return nil, err
	}
	told := func(context.Context) error {
		states, err := b.states()
		if err == nil && len(states) == 0 {
			err = errors.New("the budget is not watched yet")
		}
		return err
	}
	var err error
	b.watch, err = c.wire.Daemon(ctx, "budget", told, c.program("kubectl"), "--kubeconfig="+c.config("admin"),
		"--cache-dir="+c.path("cache"), "get", "poddisruptionbudget", name, "--watch", "-o", budgetState)
	return b, err
}

func (b *Budget) states() (all []string, err error) {
	data, err := os.ReadFile(b.log)
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(line, "\n") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all, err
}

// Held ends the watch. It fails if in one of the states a pod was missing, or the budget was taken.
func (b *Budget) Held() error {
	if err := b.watch.Exited(); err != nil { // it did not see all
		return err
	}
	if err := b.watch.Stop(); err != nil {
		return err
	}
	states, err := b.states()
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
