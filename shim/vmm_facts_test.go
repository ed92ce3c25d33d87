package shim

import "testing"

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		accel string
		vcpus int
		want  string
	}{
		{"tcg", 1, ""}, {"kvm", 4, ""}, {"tcg", 2, " nohz=off highres=off"},
	} {
		if got := timerArguments(c.accel, c.vcpus); got != c.want {
			t.Errorf("%s, %d: %q", c.accel, c.vcpus, got)
		}
	}
}
