package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/images"
	"godwit.dev/godwit/integration/observer"
)

// The VM of the group snapshot: its page cache has a minimal Debian with redis and Python,
// its heap pieces of that.
const (
	snapshotRAM  = 2048 // MiB
	snapshotHeap = 900
	workTime     = 30 * time.Second // between the first sleep and the second one
	// One each 5 ms takes half a core of a guest without KVM: work that only a measurement has. What is measured here is
	// longer than a figure's spread of that.
	snapshotBeacon = 20 * time.Millisecond
)

// workload is the command of the VM, but for what it tells this process.
var workload = []string{"/bin/probe", "-fill", fmt.Sprint(noise), "-read", "/usr", "-heap", fmt.Sprint(snapshotHeap)}

func snapshotName(s string) string { return snapshotGroup + "." + s }

func snapshotFigures() []*Figure {
	at := func(name string, least float64, what string) *Figure {
		return &Figure{Name: name, Unit: "x", Source: Ratio, Least: goal(least), What: what, in: snapshotGroup}
	}
	plain := func(name, unit string, s Source, what string) *Figure {
		return &Figure{Name: snapshotName(name), Unit: unit, Source: s, What: what}
	}
	return []*Figure{
		at("durable_speedup", 1.5, "baseline / first hibernate, command to manifest"),
		at("golden_speedup", 5, "baseline / first hibernate beside a golden snapshot, command to manifest"),
		at("second_speedup", 10, "baseline / second hibernate, command to manifest"),
		at("second_bytes_ratio", 30, "bytes sent: baseline / second hibernate"),
		at("wake_speedup", 3, "baseline's way back, without a VM / command to first beacon"),
		{Name: "floor_ratio", Unit: "x", Source: Ratio, Most: goal(2),
			What: "hibernate by content, command to manifest / floor", in: snapshotGroup},
		plain("resident", "MiB", Kernel, "RAM in use, of the file on tmpfs"),
		plain("first", "ms", Wire, "godwit hibernate to the accepted manifest"),
		plain("golden", "ms", Wire, "the same, of a second VM, with a golden snapshot of its image"),
		plain("second", "ms", Wire, "the same, 30 s after the wake from the first"),
		plain("content", "ms", Wire, "the same, once more, and every page is compared"),
		plain("floor", "ms", Tool, "all pages in use read and hashed once, on all cores"),
		plain("wake", "ms", Wire, "godwit wake to the first beacon"),
		plain("wake_whole", "ms", Own, "godwit wake to RAM that is all there"),
		plain("wake_eager", "ms", Wire, "godwit wake to the first beacon, with worker.restore = 'eager'"),
		plain("wake_eager_speedup", "x", Ratio, "baseline's way back / that"),
		plain("baseline", "ms", Wire, "zstd -1 -T0 of the same pages and crane push, to the manifest"),
		plain("baseline_back", "ms", Tool, "crane blob and zstd -d into a file on tmpfs"),
		plain("first_bytes", "MiB", Kernel, "sent by the first hibernate"),
		plain("golden_bytes", "MiB", Kernel, "sent by the one with a golden snapshot"),
		plain("second_bytes", "MiB", Kernel, "sent by the second"),
		plain("baseline_bytes", "MiB", Kernel, "sent by the baseline"),
		plain("first_pause", "ms", Own, "pause_ms of the first"),
		plain("golden_pause", "ms", Own, "pause_ms of the one with a golden snapshot"),
		plain("second_pause", "ms", Own, "pause_ms of the second"),
		plain("content_pause", "ms", Own, "pause_ms of the one that compares"),
	}
}

func (b *bench) deriveSnapshot() {
	v := func(name string) float64 { return b.value(snapshotName(name)) }
	b.note("durable_speedup", v("baseline")/v("first"))
	b.note("golden_speedup", v("baseline")/v("golden"))
	b.note("second_speedup", v("baseline")/v("second"))
	b.note("second_bytes_ratio", v("baseline_bytes")/v("second_bytes"))
	b.note("wake_speedup", v("baseline_back")/v("wake"))
	b.note(snapshotName("wake_eager_speedup"), v("baseline_back")/v("wake_eager"))
	b.note("floor_ratio", v("content")/v("floor"))
}

// importWorkload gives the node the image.
func (b *bench) importWorkload(ctx context.Context) error {
	if !b.wants(snapshotGroup) {
		return nil
	}
	root, err := harness.Root()
	if err != nil {
		return err
	}
	probe, err := b.h.Build(ctx, "probe")
	if err != nil {
		return err
	}
	image, err := images.WithWorkload(ctx, filepath.Join(root, "bin", "debs"), probe)
	if err != nil {
		return err
	}
	file := filepath.Join(b.h.Dir, "workload.tar")
	if err := images.Write(file, image); err != nil {
		return err
	}
	defer os.Remove(file)
	return b.node.Import(ctx, file, "")
}

// snapshot puts one VM to sleep three times: booted, woken and tracked, woken and compared.
// The baseline gets the pages of the first time.
func (b *bench) snapshot(ctx context.Context) error {
	vm := b.name(snapshotGroup)
	if err := b.bootWorkload(ctx, vm); err != nil {
		return err
	}
	_, resident, err := b.node.RAM()
	if err != nil {
		return err
	}
	b.note(snapshotName("resident"), float64(resident)/mib)
	rival, err := b.newRival()
	if err != nil {
		return err
	}
	defer rival.close()
	if err := b.sleepOnce(ctx, vm, "first"); err != nil {
		return err
	}
	if err := rival.run(ctx); err != nil {
		return err
	}
	if err := b.wakeWhole(ctx, vm); err != nil {
		return err
	}
	if err := observer.Pause(ctx, workTime); err != nil {
		return err
	}
	if err := b.sleepOnce(ctx, vm, "second"); err != nil {
		return err
	}
	if err := b.byContent(ctx, vm); err != nil {
		return err
	}
	if err := b.eagerly(ctx, vm); err != nil {
		return err
	}
	if err := b.removeWorkload(ctx, vm); err != nil {
		return err
	}
	if err := b.golden(ctx); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(b.h.Dir, "registry/docker/registry/v2"))
}

func (b *bench) removeWorkload(ctx context.Context, vm string) error {
	if _, err := b.node.RunCtr(ctx, "container", "rm", vm); err != nil {
		return err
	}
	_, err := b.node.RunGodwit(ctx, "rm", "--force", vm)
	return err
}

// golden puts another VM of the image to sleep, which has never slept, on a node that has made
// a golden snapshot of it.
func (b *bench) golden(ctx context.Context) error {
	args := []string{"golden", "--memory", fmt.Sprintf("%dMiB", snapshotRAM), "--timeout", "10m", "--ready",
		"test -s /data/journal.data", "--", images.Workload}
	// the program is the image's entry point
	if _, err := b.node.RunGodwit(ctx, append(args, workload[1:]...)...); err != nil {
		return err
	}
	vm := b.name("golden")
	if err := b.bootWorkload(ctx, vm); err != nil {
		return err
	}
	if err := b.sleepOnce(ctx, vm, "golden"); err != nil {
		return err
	}
	return b.removeWorkload(ctx, vm)
}

// with has the node do one thing with more configuration.
func (b *bench) with(config string, do func() error) error {
	// Not the file that dropIn writes: that one stays.
	dropIn := filepath.Join(filepath.Dir(b.node.Config), "config.d", "once.toml")
	if err := os.WriteFile(dropIn, []byte(config), 0o600); err != nil {
		return err
	}
	defer os.Remove(dropIn)
	return do()
}

// wakeWhole wakes the VM as a node does that was told nothing, and waits for all of its RAM.
func (b *bench) wakeWhole(ctx context.Context, vm string) error {
	begun := time.Now()
	if err := b.wakeOnce(ctx, vm, "wake"); err != nil {
		return err
	}
	err := await(ctx, "see all of RAM come", func() (bool, error) {
		fills, err := b.filling(ctx, vm)
		return !fills, err
	})
	if err == nil {
		b.note(snapshotName("wake_whole"), ms(time.Since(begun)))
	}
	return err
}

// eagerly wakes the VM with all of its RAM, and puts it to sleep again.
func (b *bench) eagerly(ctx context.Context, vm string) error {
	err := b.with("[worker]\nrestore = 'eager'\n", func() error { return b.wakeOnce(ctx, vm, "wake_eager") })
	if err == nil {
		_, err = b.node.RunGodwit(ctx, "hibernate", vm)
	}
	return err
}

// filling reports whether some of the VM's RAM is still to come.
func (b *bench) filling(ctx context.Context, vm string) (bool, error) {
	out, err := b.node.RunGodwit(ctx, "ps", "-o", "json")
	if err != nil {
		return false, err
	}
	var list struct {
		VMs []struct {
			VM      struct{ ID string }
			Restore string
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return false, fmt.Errorf("godwit ps: %w: %s", err, out)
	}
	for _, v := range list.VMs {
		if v.VM.ID == vm {
			return v.Restore != "", nil
		}
	}
	return false, fmt.Errorf("godwit ps does not know VM %s", vm)
}

// byContent has the node compare pages, for one wake and sleep.
func (b *bench) byContent(ctx context.Context, vm string) error {
	return b.with("[worker]\ntracking = 'content'\n", func() error {
		if err := b.wakeOnce(ctx, vm, ""); err != nil {
			return err
		}
		if err := observer.Pause(ctx, settle); err != nil {
			return err
		}
		took, err := b.floor()
		if err != nil {
			return err
		}
		b.note(snapshotName("floor"), ms(took))
		return b.sleepOnce(ctx, vm, "content")
	})
}

func (b *bench) bootWorkload(ctx context.Context, vm string) error {
	b.watch.Mark(vm)
	args := []string{"run", "-d", "--cni", "--runtime", runtimeName, "--runtime-config-path",
		filepath.Join(b.bootDir(), "config.toml"),
		"--annotation", fmt.Sprintf("godwit.dev/memory=%dMiB", snapshotRAM), images.Workload, vm}
	args = append(args, workload...)
	if _, err := b.node.RunCtr(ctx, append(args, "-beacon", net.JoinHostPort(harness.Gateway, beaconPort), "-interval",
		snapshotBeacon.String())...); err != nil {
		return err
	}
	if _, err := b.watch.After(ctx, vm); err != nil {
		return err
	}
	return observer.Pause(ctx, settle)
}

// sleepOnce times a hibernate from the command to the manifest that the registry took.
func (b *bench) sleepOnce(ctx context.Context, vm, name string) error {
	sent, err := b.sending(ctx)
	if err != nil {
		return err
	}
	w := b.watchWorkers()
	begun := time.Now()
	out, err := b.node.RunGodwit(ctx, "hibernate", "-o", "json", vm)
	used := w.seconds()
	if err != nil {
		return err
	}
	bytes, push, err := sent(begun)
	if err != nil {
		return fmt.Errorf("hibernate %s: %w", vm, err)
	}
	var own struct {
		Figures struct {
			PauseMS  float64 `json:"pauseMs"`
			Tracking string  `json:"tracking"`
			Passes   []any   `json:"passes"`
		} `json:"figures"`
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil {
		return fmt.Errorf("hibernate %s: %w", vm, err)
	}
	f := own.Figures
	took := push.Manifest.Sub(begun)
	b.say("%s, %s: %.0f ms to the manifest, %.2f s of CPU, %.1f MiB sent, tracked by %s, pause %.1f ms, passes %v",
		vm, name, ms(took), used, bytes/mib, f.Tracking, f.PauseMS, f.Passes)
	if (name == "content") != (f.Tracking == "content") {
		return fmt.Errorf("hibernate %s: tracked by %s", vm, f.Tracking)
	}
	b.note(snapshotName(name), ms(took))
	b.note(snapshotName(name+"_bytes"), bytes/mib)
	b.note(snapshotName(name+"_pause"), f.PauseMS)
	return nil
}

func (b *bench) wakeOnce(ctx context.Context, vm, name string) error {
	b.watch.Mark(vm)
	w := b.watchWorkers()
	begun := time.Now()
	_, err := b.node.RunGodwit(ctx, "wake", vm)
	used := w.seconds()
	if err != nil {
		return err
	}
	sign, err := b.watch.After(ctx, vm)
	if err != nil {
		return err
	}
	b.say("%s: awake after %.0f ms, %.2f s of CPU", vm, ms(sign.At.Sub(begun)), used)
	if name != "" {
		b.note(snapshotName(name), ms(sign.At.Sub(begun)))
	}
	return nil
}
