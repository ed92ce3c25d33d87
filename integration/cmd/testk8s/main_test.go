package main

import (
	"testing"

	"godwit.dev/godwit/integration/k8s"
)

// A promise counts until its test has passed.
func TestUnexplained(t *testing.T) {
	const promises = "# a comment\nTestA one\nTestB two\n- three\nTestA four\n"
	cases := []k8s.Case{{Name: "TestA", End: "pass"}, {Name: "TestB", End: "fail"}}
	if n := unexplained(promises, cases); n != 2 {
		t.Errorf("%d promises are without a test, want 2", n)
	}
	if n := unexplained(promises, nil); n != 4 {
		t.Errorf("%d promises are without a test in a run without tests, want 4", n)
	}
}
