package main

import (
	"strings"
	"testing"
)

// TestRole shows which job of the binary each command line of containerd and of godwit means.
func TestRole(t *testing.T) {
	for args, want := range map[string]string{
		"-namespace n -id x start":            "start",
		"-namespace n -id x delete":           "",
		"-v":                                  "version",
		"-info":                               "",
		"-namespace n -id x":                  "",
		"worker":                              "worker",
		"holder /run/netns/x":                 "holder",
		"adopt -namespace n -id start":        "adopt",
		"fit -config delete":                  "fit",
		"-namespace n -id x -bundle b delete": "",
	} {
		if got := role(strings.Fields(args)); got != want {
			t.Errorf("role of %q = %q, want %q", args, got, want)
		}
	}
}
