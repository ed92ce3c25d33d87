package k8s

import (
	"context"
	"fmt"
	"strings"

	"godwit.dev/godwit/integration/harness"
)

// nodeAccount is who godwit-node is for the API server.
const nodeAccount = "godwit-node"

// StartAgent starts a node's godwit-node, also again. It has the rights of its account, by a token of its node.
func (c *Cluster) StartAgent(ctx context.Context, n *harness.Node) error {
	program, err := c.buildProgram(ctx, nodeAccount)
	if err != nil {
		return err
	}
	uid, err := c.Kubectl(ctx, "get", "node", n.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}
	token, err := c.Kubectl(ctx, "create", "token", nodeAccount, "--namespace", system, "--duration", "24h",
		"--bound-object-kind", "Node", "--bound-object-name", n.Name, "--bound-object-uid", strings.TrimSpace(uid))
	if err != nil {
		return err
	}
	user := nodeAccount + "-" + n.Name
	if err := c.server.WriteConfig(user, strings.TrimSpace(token)); err != nil {
		return err
	}
	c.agents[n.Name], err = n.Daemon(ctx, nodeAccount, started, program, "--config", n.Config, "--kubeconfig",
		c.config(user), "--node", n.Name)
	if err != nil {
		return fmt.Errorf("start the agent of node %s: %w", n.Name, err)
	}
	return nil
}

// Agent is the godwit-node of a node.
func (c *Cluster) Agent(n *harness.Node) *harness.Process { return c.agents[n.Name] }
