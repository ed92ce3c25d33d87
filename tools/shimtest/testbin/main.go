// Command testbin is the program that the suites run in the container.
package main

import "github.com/containerd/shimtest/testbin"

func main() { testbin.Main() }
