package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/client"
)

// A VM is made of an image and runs; its output goes to the node's log. integration/cmd/day is the whole program, which
// a test runs on a node.
func ExampleClient_Run() {
	c := client.New(client.WithNamespace("default"))
	defer c.Close()
	vm, _, err := c.Run(context.Background(), client.VMOptions{
		Image: "alpine", Name: "web", Command: []string{"sleep", "1000"}, Memory: 256 << 20, Ports: []string{"8080:80"},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(vm.GetNamespace(), vm.GetId())
}

// With streams, Run answers the process: it is waited for, and has an exit code.
func ExampleProcess_Wait() {
	c := client.New()
	defer c.Close()
	_, p, err := c.Run(context.Background(), client.VMOptions{Image: "alpine", Command: []string{"uname", "-r"}},
		&client.Streams{Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		log.Fatal(err)
	}
	code, err := p.Wait(context.Background())
	fmt.Println(code, err)
}

// A VM is found by what a user calls it, and put to sleep.
func ExampleClient_Hibernate() {
	c := client.New()
	defer c.Close()
	ctx := context.Background()
	vm, err := c.Resolve(ctx, "web")
	if err != nil {
		log.Fatal(err)
	}
	slept, err := c.Hibernate(ctx, vm, nil, func(s *nodev1.StatusResponse) { fmt.Println(s.GetStep(), s.GetDone()) })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("its snapshot is", slept.GetOperation().GetDigest())
}

// A VM wakes where it fits.
func ExampleClient_Wake() {
	c := client.New()
	defer c.Close()
	awake, err := c.Wake(context.Background(), &nodev1.VM{Namespace: "default", Id: "web"}, "", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("it runs on", awake.GetOperation().GetDestination())
}

// A VM moves to node b while it runs.
func ExampleClient_Migrate() {
	c := client.New()
	defer c.Close()
	moved, err := c.Migrate(context.Background(), &nodev1.VM{Namespace: "default", Id: "web"},
		&nodev1.MigrateRequest{To: "b", Mode: "live"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("it stood still for %.0f ms\n", moved.GetFigures().GetDowntimeMs())
}

// What happens on this node is heard of, from an hour ago on. What is missing is said.
func ExampleClient_Events() {
	c := client.New()
	defer c.Close()
	o := client.EventOptions{Since: time.Now().Add(-time.Hour), Gap: func(text string) { log.Print(text) }}
	err := c.Events(context.Background(), o, func(ev *nodev1.NodeEvent) error {
		fmt.Println(ev.GetType(), ev.GetEvent(), ev.GetPhase(), ev.GetName())
		return nil
	})
	log.Fatal(err)
}

// All moves are heard of as they come.
func ExampleClient_Watch() {
	c := client.New()
	defer c.Close()
	err := c.Watch(context.Background(), 0, func(ev *nodev1.MoveEvent) error {
		fmt.Println(ev.GetId(), ev.GetType(), ev.GetVm().GetId(), ev.GetSource(), ev.GetDestination())
		return nil
	})
	log.Fatal(err)
}
