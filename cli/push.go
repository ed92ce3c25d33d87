package cli

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
)

// pushFlags bound the push of one operation.
type pushFlags struct {
	concurrency uint32
	bandwidth   string
	budget      time.Duration
}

func (p *pushFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Uint32Var(&p.concurrency, "concurrency", 0, "uploads at once (default: worker.concurrency)")
	flags.StringVar(&p.bandwidth, "bandwidth", "", "bytes a second at most, such as 20MiB (default: worker.bandwidth)")
	flags.DurationVar(&p.budget, "pause-budget", 0,
		"how long the VM may stand still if pages are pushed before; 0: pause at once (default: worker.pause_budget)")
}

// maxConcurrency is that of worker.concurrency.
const maxConcurrency = 64

// read answers them as the daemon takes them: 0 is as configured, a budget below that none.
func (p *pushFlags) read(cmd *cobra.Command) (concurrency uint32, bandwidth uint64, budgetMS int64, err error) {
	if p.concurrency > maxConcurrency {
		return 0, 0, 0, fmt.Errorf("--concurrency %d: at most %d: %w", p.concurrency, maxConcurrency,
			errdefs.ErrInvalidArgument)
	}
	if bandwidth, err = parseBandwidth(p.bandwidth); err != nil {
		return 0, 0, 0, err
	}
	if !cmd.Flags().Changed("pause-budget") {
		return p.concurrency, bandwidth, 0, nil
	}
	if p.budget < 0 || p.budget > config.MaxPauseBudget {
		return 0, 0, 0, fmt.Errorf("--pause-budget %v: from 0 to 1m: %w", p.budget, errdefs.ErrInvalidArgument)
	}
	if budgetMS = p.budget.Milliseconds(); budgetMS == 0 {
		budgetMS = -1
	}
	return p.concurrency, bandwidth, budgetMS, nil
}

// parseBandwidth answers bytes a second; none is 0, as configured.
func parseBandwidth(said string) (uint64, error) {
	if said == "" {
		return 0, nil
	}
	b, err := config.ParseSize(said)
	if err == nil && b < config.MinBandwidth {
		err = fmt.Errorf("at least %s a second: %w", config.MinBandwidth, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return 0, fmt.Errorf("--bandwidth %s: %w", said, err)
	}
	return uint64(b), nil
}
