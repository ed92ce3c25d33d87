// Package agentd is the guest's half of the agent: it serves godwit.agent.v1 inside
// the VM as process 1. guest/initd boots the guest and calls it.
package agentd
