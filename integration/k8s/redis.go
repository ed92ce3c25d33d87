package k8s

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"godwit.dev/godwit/integration/harness"
)

// redisBound of one question.
const redisBound = 10 * time.Second

// Redis asks the redis of a VirtualMachine once, from the wire, where its address is known from the object.
func (c *Cluster) Redis(ctx context.Context, vm string, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, redisBound)
	defer cancel()
	address, err := c.Kubectl(ctx, "get", "virtualmachine", vm, "-o", "jsonpath={.status.addresses[0]}")
	if err != nil {
		return "", err
	}
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(address, "6379"))
	if err != nil {
		return "", fmt.Errorf("reach the redis of VM %s: %w", vm, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.Join(command, " ")); err != nil {
		return "", err
	}
	answer := bufio.NewReader(conn)
	line, err := answer.ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") && !strings.HasPrefix(line, "$-1") { // its length; the text follows
		line, err = answer.ReadString('\n')
	}
	if err != nil {
		return "", fmt.Errorf("hear the redis of VM %s: %w", vm, err)
	}
	return strings.TrimLeft(strings.TrimSpace(line), ":+"), nil
}

// AskRedis is Redis, until there is an answer.
func (c *Cluster) AskRedis(ctx context.Context, vm string, command ...string) (answer string, err error) {
	err = harness.Poll(ctx, readyTime, func(ctx context.Context) (err error) {
		answer, err = c.Redis(ctx, vm, command...)
		return err
	})
	return answer, err
}
