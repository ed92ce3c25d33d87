// Command addresses is a plugin of CNI for the ground of Kubernetes. It follows one that makes an interface, and gives
// that an address of the one subnet that all nodes have. A pod may ask for an address, also for one that a pod
// on another node still has. It asks as Calico's users do.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const (
	asks    = "cni.projectcalico.org/ipAddrs"
	first   = "10.88.100."
	gateway = "10.88.0.1"
	bits    = "/16"
)

// config is what CNI hands over. Of the plugin before, all is handed on.
type config struct {
	Version string `json:"cniVersion"`
	Dir     string `json:"dir"` // of all nodes: the leases
	Runtime struct {
		Pod map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	} `json:"runtimeConfig"`
	Previous map[string]any `json:"prevResult"`
}

func main() {
	if err := run(); err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "code": 100, "msg": err.Error()})
		os.Exit(1)
	}
}

func run() error {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0",
			"supportedVersions": []string{"1.0.0"}})
	}
	var c config
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	switch os.Getenv("CNI_COMMAND") {
	case "ADD":
		return c.add(os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS"), os.Getenv("CNI_IFNAME"))
	case "DEL":
		return leases(c.Dir).giveBack(os.Getenv("CNI_CONTAINERID"))
	}
	return nil
}

func (c *config) add(container, netns, name string) error {
	var asked []string
	if text := c.Runtime.Pod[asks]; text != "" {
		if err := json.Unmarshal([]byte(text), &asked); err != nil || len(asked) != 1 {
			return fmt.Errorf("annotation %s: %q is no list of one address: %w", asks, text, err)
		}
	}
	address, err := leases(c.Dir).take(container, asked)
	if err != nil {
		return err
	}
	// A pod that runs elsewhere may have the address still: the kernel of this one neither announces it nor answers for
	// it. Once the VM is here, it does so itself.
	quiet := "true"
	if len(asked) > 0 {
		quiet = "echo 8 >/proc/sys/net/ipv4/conf/" + name + "/arp_ignore"
	}
	script := fmt.Sprintf("%s && ip addr add %s%s dev %s && ip route add default via %s", quiet, address, bits, name,
		gateway)
	if out, err := exec.Command("nsenter", "--net="+netns, "sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return c.answer(address, name)
}

// answer adds the address to what the plugin before has answered.
func (c *config) answer(address, name string) error {
	of := -1
	interfaces, _ := c.Previous["interfaces"].([]any)
	for i := range interfaces {
		link, _ := interfaces[i].(map[string]any)
		if sandbox, _ := link["sandbox"].(string); link["name"] == name && sandbox != "" {
			of = i
		}
	}
	if of < 0 {
		return fmt.Errorf("no plugin before has made interface %s: %v", name, interfaces)
	}
	c.Previous["ips"] = []any{map[string]any{"interface": of, "address": address + bits, "gateway": gateway}}
	c.Previous["routes"] = []any{map[string]any{"dst": "0.0.0.0/0"}}
	c.Previous["cniVersion"] = strings.TrimSpace(c.Version)
	return json.NewEncoder(os.Stdout).Encode(c.Previous)
}
