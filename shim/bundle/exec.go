package bundle

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"godwit.dev/godwit/guest/stage"
)

// ExecProcess reads the process of an exec as a client has given it. It answers the process that
// the guest is to run, with the notes on what is not applied. The task's word on the terminal
// counts. As in the Create of a container of a pod, what CRI says of AppArmor and SELinux is noted there.
func ExecProcess(data []byte, terminal, inPod bool) (process []byte, notes []string, err error) {
	p := new(specs.Process)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, nil, fmt.Errorf("read process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !inPod {
		if err := checkLabels(p); err != nil {
			return nil, nil, err
		}
	}
	notes = stripLabels(p)
	if err := stage.CheckProcess(p); err != nil {
		return nil, nil, err
	}
	p.Terminal = terminal
	process, err = json.Marshal(p)
	return process, notes, err
}
