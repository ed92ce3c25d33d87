package screen

import (
	"fmt"
	"time"
)

// Bytes is a number of bytes in the unit that leaves one to four digits, and a dash for none.
func Bytes(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1<<10:
		return fmt.Sprintf("%dB", n)
	}
	value, units := float64(n)/(1<<10), []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= 1000 && len(units) > 1 {
		value, units = value/(1<<10), units[1:]
	}
	return trimZero(value) + units[0]
}

func trimZero(v float64) string {
	if s := fmt.Sprintf("%.1f", v); v < 100 && s[len(s)-2:] != ".0" {
		return s
	}
	return fmt.Sprintf("%.0f", v)
}

// Age is a duration as one number and its unit, as people say it: 5s, 12m, 3h, 4d, 2y. Less than nothing is 0s:
// clocks differ.
func Age(d time.Duration) string {
	const (
		minute = time.Minute
		hour   = time.Hour
		day    = 24 * hour
		year   = 365 * day
	)
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{year, "y"}, {day, "d"}, {hour, "h"}, {minute, "m"}} {
		if d >= 2*u.unit {
			return fmt.Sprintf("%d%s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%ds", max(0, d)/time.Second)
}

// Since is the age of what happened at a time in nanoseconds since 1970, and a dash for 0.
func Since(unixNano int64) string {
	if unixNano == 0 {
		return "-"
	}
	return Age(time.Since(time.Unix(0, unixNano)))
}

// Dash stands where there is nothing.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Instant is a time in nanoseconds since 1970, in UTC, and a dash for 0.
func Instant(unixNano int64) string {
	if unixNano == 0 {
		return "-"
	}
	return time.Unix(0, unixNano).UTC().Format(time.RFC3339)
}
