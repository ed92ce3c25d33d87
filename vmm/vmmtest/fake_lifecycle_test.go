package vmmtest

import (
	"context"

	"godwit.dev/godwit/vmm"
)

func (v *fakeVM) Resume(context.Context) error {
	select {
	case <-v.done:
		if v.d.wrong == "resume of the dead passes" {
			return nil
		}
		return vmm.ErrNotResumed
	default:
		return v.run(true)
	}
}

func (v *fakeVM) Pause(ctx context.Context) error {
	if err := v.answers(ctx); err != nil {
		return err
	}
	return v.run(false)
}
