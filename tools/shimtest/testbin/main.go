// Command testbin is the program that the suites run in the container. Its "forever" ends
// at any signal, and the Go runtime lets through to it the one by which it asks its own
// threads to yield: one container in a thousand ended by itself in the midst of a test. It is
// linked with -X runtime.godebugDefault=asyncpreemptoff=1, so that there is none.
package main

import "github.com/containerd/shimtest/testbin"

func main() { testbin.Main() }
