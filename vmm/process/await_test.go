package process

import "testing"

// TestWaiters: who waits gets what he wants and all of it. One that does not look, or has gone, holds up no other.
func TestWaiters(t *testing.T) {
	var w Waiters[int]
	w.Tell(1)
	even := w.Expect(func(n int) bool { return n%2 == 0 })
	gone := w.Expect(func(int) bool { return true })
	gone.Close()
	for n := range 1000 {
		w.Tell(n)
	}
	for _, want := range []int{0, 2, 4} {
		if got := <-even.Got; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	even.Close()
	if len(gone.Got) > 0 {
		t.Error("a waiter that has gone is told")
	}
}
