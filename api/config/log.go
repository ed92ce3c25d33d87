package config

import (
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"
)

// Slog is the level for a handler of slog.
func (l Log) Slog() (level slog.Level, err error) {
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return level, fmt.Errorf("log.level: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return level, nil
}
