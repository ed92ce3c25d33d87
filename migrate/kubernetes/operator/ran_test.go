package operator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node may write an address as it likes, and a pod has more than one.
func TestCommonAddress(t *testing.T) {
	pod := []corev1.PodIP{{IP: "10.0.0.9"}, {IP: "fd00::9"}}
	for address, used := range map[string]bool{"10.0.0.9": true, "fd00::9": true, "FD00:0::0009": true,
		"::ffff:10.0.0.9": true, "10.0.0.8": false, "fd00::8": false, "": false, "x": false} {
		if got := common([]string{"10.9.9.9", address}, pod); (got != "") != used || used && got != address {
			t.Errorf("%s: %q", address, got)
		}
	}
}
