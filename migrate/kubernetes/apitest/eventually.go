package apitest

import (
	"testing"
	"time"

	"godwit.dev/godwit/integration/controlplane"
)

// FreeAddress is an address of this host where nothing listens.
func FreeAddress(t *testing.T) string {
	t.Helper()
	at, err := controlplane.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Patience is how long Eventually waits.
const Patience = 90 * time.Second

const between = 20 * time.Millisecond

// Eventually waits until something is so.
func Eventually(t *testing.T, what string, so func() (bool, error)) {
	t.Helper()
	var err error
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(between) {
		var done bool
		if done, err = so(); done {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, Patience, err)
}
