// Package fit answers, as a role of the shim's binary, whether this node could take up a VM
// that another one offers. godwitd asks before the VM is touched; Create asks again. Without an offer it says what
// VMs have here.
package fit

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/api/config"
	"godwit.dev/godwit/shim"
	"godwit.dev/godwit/shim/join"
	"godwit.dev/godwit/shim/program"
)

// maxOffer bounds what is read of an offer, in bytes: as much as a call of ttrpc may have.
const maxOffer = 4 << 20

// Offer is what the shim of the VM says of it, both as JSON.
type Offer struct {
	Spec  json.RawMessage `json:"spec"`
	Facts json.RawMessage `json:"facts"`
}

// Answer to an Offer.
type Answer struct {
	Obstacle string `json:"obstacle,omitempty"` // empty: none
}

// Classes are what VMs have here, for people.
type Classes struct {
	CPUs []string `json:"cpus,omitempty"`
	VMMs []string `json:"vmms,omitempty"`
}

// Main reads an Offer and writes the Answer. An error says that there is none. With -classes it writes Classes.
func Main(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet(program.Fit, flag.ContinueOnError)
	path := flags.String("config", "", "configuration of the node")
	classes := flags.Bool("classes", false, "say what VMs have here")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cfg, err := config.Load(*path)
	if err != nil {
		return err
	}
	host, err := join.Host(cfg)
	if err != nil {
		return err
	}
	if *classes {
		var c Classes
		c.CPUs, c.VMMs = shim.Classes(ctx, host, join.VMMs()...)
		return json.NewEncoder(out).Encode(c)
	}
	var o Offer
	if err := json.NewDecoder(io.LimitReader(in, maxOffer)).Decode(&o); err != nil {
		return fmt.Errorf("read offer: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var a Answer
	err = shim.Fits(ctx, host, o.Spec, o.Facts)
	switch {
	case errdefs.IsFailedPrecondition(err), errdefs.IsNotImplemented(err):
		a.Obstacle = err.Error()
	case err != nil:
		return err
	}
	return json.NewEncoder(out).Encode(a)
}
