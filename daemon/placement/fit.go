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
	args := []string{program.Fit}
	if configPath != "" {
		args = append(args, "-config", configPath)
	}
	ctx, cancel := context.WithTimeout(ctx, fitBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.WaitDelay = killedBound
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &said
	var answer struct{ Obstacle string }
	if err = cmd.Run(); err == nil {
		err = json.Unmarshal(out.Bytes(), &answer)
	}
	if err != nil {
		return "", fmt.Errorf("ask %s whether the VM fits: %w: %s", binary, err, strings.TrimSpace(said.String()))
	}
	return answer.Obstacle, nil
}
