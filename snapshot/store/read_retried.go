package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ReadRetried is ReadBlob, three times at most: a connection may break, and a cache on the way may be
// wrong once.
func ReadRetried(ctx context.Context, st Store, d digest.Digest, size int64) ([]byte, error) {
	for try := 1; ; try++ {
		data, err := ReadBlob(ctx, st, d, size)
		if err == nil || try == 3 || ctx.Err() != nil || !errdefs.IsUnavailable(err) && !errdefs.IsDataLoss(err) {
			return data, err
		}
	}
}

// Lost is the error of reading a blob that a stored manifest lists. That the store does not have it is
// DataLoss: it is no answer to whether the manifest's owner exists.
func Lost(what string, d v1.Descriptor, err error) error {
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%s %s is missing from the store (%v): %w", what, d.Digest, err, errdefs.ErrDataLoss)
	}
	return fmt.Errorf("%s: %w", what, err)
}
