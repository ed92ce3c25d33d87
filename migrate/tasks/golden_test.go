package tasks

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"
)

// What an image says about being ready: its label, else docker's health check.
func TestProbeOfImage(t *testing.T) {
	for config, want := range map[string][]string{
		`{}`: nil,
		`{"config":{"Labels":{"dev.godwit.ready":"/bin/up -x"},"Healthcheck":{"Test":["CMD","/bin/no"]}}}`: {"/bin/up", "-x"},
		`{"config":{"Healthcheck":{"Test":["CMD","/bin/up","-x"]}}}`:                                       {"/bin/up", "-x"},
		`{"config":{"Healthcheck":{"Test":["CMD-SHELL","up | grep x"]}}}`: {"/bin/sh", "-c",
			"up | grep x"},
		`{"config":{"Healthcheck":{"Test":["NONE"]}}}`: nil,
	} {
		if got, err := probeIn([]byte(config)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", config, got, err)
		}
	}
	if _, err := probeIn([]byte("[")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no config: %v", err)
	}
}
