package vmmtest

import (
	"context"
	"os"

	"godwit.dev/godwit/vmm"
)

// firstDisk takes what the guest says.
func (v *fakeVM) firstDisk() (*os.File, error) {
	if len(v.cfg.Disks) == 0 || v.cfg.Template && v.d.wrong == "a copy has no disk" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return dup(v.cfg.Disks[0].File)
}

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
