// Command day is a day of a VM as a Go program has it: it runs an image, puts the VM to sleep, wakes it and removes it.
// It is the example of package client, and a test runs it on a node.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"godwit.dev/godwit/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := day(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func day(ctx context.Context, image string) error {
	c := client.New()
	defer c.Close()
	vm, _, err := c.Run(ctx, client.VMOptions{Image: image, Name: "worker", Command: []string{"sleep", "1000"}}, nil)
	if err != nil {
		return err
	}
	slept, err := c.Hibernate(ctx, vm, nil, nil)
	if err != nil {
		return err
	}
	digest, err := c.ResolveSnapshot(ctx, slept.GetOperation().GetDigest()[:19], vm)
	if err != nil {
		return err
	}
	fmt.Println(vm.GetId(), "sleeps as", digest)
	if _, err := c.Start(ctx, vm, nil); err != nil {
		fmt.Println("it is not started:", err)
	}
	awake, err := c.Wake(ctx, vm, "", nil)
	if err != nil {
		return err
	}
	fmt.Println(vm.GetId(), "runs on", awake.GetOperation().GetDestination())
	if err := c.Stop(ctx, vm, 0); err != nil {
		return err
	}
	if _, err := c.Remove(ctx, vm, client.RemoveOptions{}); err != nil {
		return err
	}
	fmt.Println(vm.GetId(), "is removed")
	return nil
}
