package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcd "go.etcd.io/etcd/client/v3"
)

// defaultQuota of an etcd that does not say what its own is.
const defaultQuota = 2 << 30

// Space says how full etcd is. It fails where that ends in its refusal of each change. It fails
// with FailedPrecondition where etcd is not compacted and half of its quota is used, or where
// four fifths are. It fails with ResourceExhausted where etcd refuses already.
func (e *Etcd) Space(ctx context.Context) (string, error) {
	said, err := e.space(ctx)
	if errdefs.IsPermissionDenied(err) {
		return "etcd does not tell this controller how full it is", nil
	}
	return said, err
}

func (e *Etcd) space(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdBound)
	defer cancel()
	status, err := e.client.Status(ctx, e.client.Endpoints()[0])
	if err != nil {
		return "", e.failed(ctx, err)
	}
	alarms, err := e.client.AlarmList(ctx)
	if err != nil {
		return "", e.failed(ctx, err)
	}
	_, err = e.client.Get(ctx, e.prefix+"version", etcd.WithRev(1))
	compacted := errors.Is(err, rpctypes.ErrCompacted)
	if err != nil && !compacted {
		return "", e.failed(ctx, err)
	}
	quota := status.DbSizeQuota
	if quota <= 0 {
		quota = defaultQuota
	}
	used := fmt.Sprintf("%d of %d MiB are used", status.DbSize>>20, quota>>20)
	switch {
	case len(alarms.Alarms) > 0:
		return used, fmt.Errorf("etcd has raised %v and refuses changes; %s: %w", alarms.Alarms[0].GetAlarm(), used,
			errdefs.ErrResourceExhausted)
	case !compacted && 2*status.DbSize > quota:
		return used, fmt.Errorf("this etcd is not compacted, and %s: %w", used, errdefs.ErrFailedPrecondition)
	case 5*status.DbSize > 4*quota:
		return used, fmt.Errorf("etcd is nearly full: %s: %w", used, errdefs.ErrFailedPrecondition)
	case !compacted:
		used += "; it was never compacted"
	}
	return used, nil
}
