package placement

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/shim/program"

	machinev1 "godwit.dev/godwit/api/machine/v1"
)

const (
	fitBound = 30 * time.Second

	killedBound = time.Second // of the output of a program that was killed, which another may hold
)

// Fits asks the shim's binary, which would run the VM here, whether it could: VMM, machine,
// CPU and device layout. The answer is why not, or empty.
func Fits(ctx context.Context, binary, configPath string, offer *machinev1.OfferResponse) (string, error) {
	if len(offer.GetFacts()) == 0 || len(offer.GetSpec()) == 0 {
		return "", nil // Create will tell
	}
	in, err := json.Marshal(map[string]json.RawMessage{"spec": offer.GetSpec(), "facts": offer.GetFacts()})
	if err != nil {
		return "", fmt.Errorf("what the source offers is no JSON: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var answer struct{ Obstacle string }
	if err := ask(ctx, binary, configPath, in, &answer); err != nil {
		return "", fmt.Errorf("ask %s whether the VM fits: %w", binary, err)
	}
	return answer.Obstacle, nil
}

// Classes asks the shim's binary which classes of CPUs and which VMMs the VMs of this node have, for people.
func Classes(ctx context.Context, binary, configPath string) (cpus, vmms []string, err error) {
	var answer struct{ CPUs, VMMs []string }
	if err := ask(ctx, binary, configPath, nil, &answer, "-classes"); err != nil {
		return nil, nil, fmt.Errorf("ask %s what VMs have here: %w", binary, err)
	}
	return answer.CPUs, answer.VMMs, nil
}

// ask runs the role fit of the shim's binary.
func ask(ctx context.Context, binary, configPath string, in []byte, answer any, args ...string) error {
	args = append([]string{program.Fit}, args...)
	if configPath != "" {
		args = append(args, "-config", configPath)
	}
	ctx, cancel := context.WithTimeout(ctx, fitBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.WaitDelay = killedBound
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	err := cmd.Run()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), answer)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}
