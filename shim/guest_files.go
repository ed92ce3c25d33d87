package shim

import (
	"context"
	"iter"

	"github.com/containerd/errdefs"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/shim/bundle"
)

// copyFiles brings files of the host into a container. A guest that an older build has booted may know no hard links.
func copyFiles(ctx context.Context, agent Agent, container string, copies bundle.Copies) error {
	err := sendFiles(ctx, agent, container, copies.Requests(ctx))
	if errdefs.IsNotImplemented(err) {
		err = sendFiles(ctx, agent, container, copies.RequestsInFull(ctx))
	}
	return err
}

func sendFiles(ctx context.Context, agent Agent, container string, all iter.Seq2[*agentv1.CopyRequest, error]) error {
	for files, err := range all {
		if err != nil {
			return err
		}
		files.Container = container
		if _, err := agent.Copy(ctx, files); err != nil {
			return err
		}
	}
	return nil
}
