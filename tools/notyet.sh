#!/bin/sh
# A target that stands in the plan and does not work yet: says so and fails, so that
# nobody takes silence for success.
echo "make $1: not there yet, see docs/status.md" >&2
exit 2
