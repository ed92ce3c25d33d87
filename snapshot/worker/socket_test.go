package worker

import (
	"os"
	"testing"

	"github.com/containerd/errdefs"

	"godwit.dev/godwit/internal/fdtest"
)

// A process that has no number left for a descriptor which it is sent says that it lacks descriptors.
func TestReceiveWithoutDescriptors(t *testing.T) {
	own, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	defer theirs.Close()
	if err := sendFile(own, os.Stdin); err != nil {
		t.Fatal(err)
	}
	restore := fdtest.Exhaust(t, 0)
	f, err := receiveFile(theirs)
	restore()
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v, %v", f, err)
	}
}
