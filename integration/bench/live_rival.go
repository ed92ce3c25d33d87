package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	agentv1 "godwit.dev/godwit/api/agent/v1"
	"godwit.dev/godwit/guest/client"
	"godwit.dev/godwit/integration/harness"
	"godwit.dev/godwit/integration/observer"
	"godwit.dev/godwit/network"
	"godwit.dev/godwit/vmm"
	"godwit.dev/godwit/vmm/qemu"
	"godwit.dev/godwit/vmm/qemu/qmp"
)

// rivalOrder is what RivalMain does; the repository is Root.
type rivalOrder struct {
	Root, Probe string
	RAM         int // MiB
	Limit       int // downtime-limit, ms
	Args        []string
}

// rivalWord is what it answers.
type rivalWord struct {
	GapMS    float64 `json:"gap_ms"`
	Resident float64 `json:"resident"` // MiB
	Lost     int     `json:"lost"`
	Own      float64 `json:"own_ms"` // what QEMU says of its downtime
	Limit    int     `json:"limit"`  // downtime-limit that it ended with, ms
}

// rivalTries is how often QEMU may fail at its own migration in a round; each is told.
const rivalTries = 3

// rival times QEMU's own live migration of the same guest, in node a.
func (b *liveBench) rival(ctx context.Context, s shape, limit int) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	order, err := json.Marshal(rivalOrder{Root: root, Probe: filepath.Join(b.h.Dir, "probe"), RAM: s.ram, Limit: limit,
		Args: probeFlags(s)})
	if err != nil {
		return err
	}
	var out string
	for try := 1; ; try++ {
		out, err = b.node.Run(ctx, b.Self[0], append(b.Self[1:len(b.Self):len(b.Self)], string(order))...)
		if err == nil {
			break
		}
		// QEMU's destination may end, or come up without its guest's clock: that is not ours.
		b.say("  QEMU, downtime-limit %d ms: try %d failed: %v", limit, try, err)
		if ctx.Err() != nil {
			return fmt.Errorf("measure QEMU's own migration: %w", err)
		}
		if try == rivalTries {
			return nil // what is not measured fails the run at its end; the rest is worth having
		}
	}
	var w rivalWord
	if err := json.Unmarshal([]byte(out), &w); err != nil {
		return fmt.Errorf("measure QEMU's own migration: %w: %s", err, out)
	}
	b.say("  QEMU, downtime-limit %d ms: gap %.1f ms, %d ticks lost; it says %.0f, with a limit of %d ms at its end",
		limit, w.GapMS, w.Lost, w.Own, w.Limit)
	b.note(rivalName(s, limit), w.GapMS)
	b.note(limitName(s, limit), float64(w.Limit))
	b.note("qemu_resident_"+s.name, w.Resident)
	return nil
}

// RivalMain boots a guest, moves it by QEMU's own live migration over loopback, and writes
// how long it stood still by its own ticks.
func RivalMain(ctx context.Context, text string, out io.Writer) (err error) {
	var o rivalOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/run", "rival")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sides := [2]rivalSide{}
	for i := range sides {
		defer sides[i].end()
		if err := sides[i].make(ctx, o, dir, i); err != nil {
			return err
		}
	}
	sniffers := []*os.File{sides[0].sniffer, sides[1].sniffer}
	ports := observer.Hear(sniffers...)
	if err := sides[0].workload(ctx, o); err != nil {
		return err
	}
	if err := await(ctx, "see the first tick", func() (bool, error) { return ports.Arrived(0), nil }); err != nil {
		return err
	}
	if err := observer.Pause(ctx, settle); err != nil {
		return err
	}
	w := rivalWord{}
	if w.Resident, err = privateRAM(sides[0].machine.Process().PID, o.RAM); err != nil {
		return err
	}
	ports.Forget()
	if w.Own, w.Limit, err = migrate(ctx, &sides[0], &sides[1], o.Limit); err != nil {
		return err
	}
	if err := await(ctx, "see a tick after the move", func() (bool, error) { return ports.Arrived(1), nil }); err != nil {
		return err
	}
	if err := observer.Pause(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	c, err := ports.Cross(0, 1)
	if err != nil {
		return err
	}
	w.GapMS, w.Lost = ms(c.Gap), c.Lost
	return json.NewEncoder(out).Encode(w)
}

// rivalSide is one of both QEMUs.
type rivalSide struct {
	machine vmm.Machine
	cfg     *vmm.Config
	console string
	sniffer *os.File
}

const (
	rivalMAC     = "02:67:6f:64:ff:01"
	rivalAddress = "10.88.200.10/16"
)

func (s *rivalSide) make(ctx context.Context, o rivalOrder, dir string, i int) (err error) {
	own := filepath.Join(dir, fmt.Sprint(i))
	if err := os.MkdirAll(own, 0o711); err != nil {
		return err
	}
	if s.cfg, s.console, err = guestConfig(ctx, o.Root, own, uint64(o.RAM)<<20, o.Probe); err != nil {
		return err
	}
	name := fmt.Sprintf("rival%d", i)
	tap, err := network.DetachedTap(name)
	if err != nil {
		return err
	}
	defer tap.Close() // QEMU has its own
	for _, args := range [][]string{{"link", "set", name, "mtu", "1500"}, {"link", "set", name, "master", "gw0", "up"}} {
		if text, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, text)
		}
	}
	if s.sniffer, err = harness.SniffLink(name, livePort); err != nil {
		return err
	}
	s.cfg.NICs = []vmm.NIC{{ID: "net0", Slot: qemu.FirstNICSlot, MAC: rivalMAC, MTU: 1500, Tap: tap}}
	s.cfg.Incoming = i == 1
	binary, err := ownRAM(own, o.RAM)
	if err != nil {
		return err
	}
	driver, err := qemu.New(qemu.Driver{Binary: binary, AllowRoot: true})
	if err != nil {
		return err
	}
	s.machine, err = driver.Start(ctx, *s.cfg)
	return err
}

func (s *rivalSide) end() {
	if s.machine != nil { // it may be detached: its process is a child of this one
		pid := s.machine.Process().PID
		if unix.Kill(pid, unix.SIGKILL) == nil {
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	}
	if s.sniffer != nil {
		s.sniffer.Close()
	}
}

// workload boots the guest and starts the probe in it.
func (s *rivalSide) workload(ctx context.Context, o rivalOrder) error {
	if err := s.machine.Resume(ctx); err != nil {
		return err
	}
	a, err := client.Connect(ctx, s.cfg.Agent, client.Options{Console: s.console, BootTimeout: 4 * time.Minute})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := a.Setup(ctx, bareSetup()); err != nil {
		return err
	}
	nic := &agentv1.NIC{Mac: rivalMAC, Name: "eth0", Mtu: 1500, Addresses: []string{rivalAddress}}
	if _, err := a.ConfigureNetwork(ctx, &agentv1.ConfigureNetworkRequest{Nics: []*agentv1.NIC{nic}}); err != nil {
		return err
	}
	p, err := json.Marshal(specs.Process{Args: append([]string{"/bin/probe", "-file", "/tmp/journal"}, o.Args...),
		Cwd: "/"})
	if err != nil {
		return err
	}
	_, err = a.Start(ctx, &agentv1.StartRequest{Process: p})
	return err
}

// own takes it from the driver, and what that has asked of its migrations back: RAM goes along, and
// it is announced as often as QEMU does without being told.
func (s *rivalSide) own(ctx context.Context) (*qmp.Client, error) {
	control := s.machine.Process().Control
	if err := s.machine.(*qemu.Machine).Detach(); err != nil {
		return nil, err
	}
	c, err := qmp.Dial(ctx, control, func(qmp.Event) {})
	if err != nil {
		return nil, err
	}
	all := map[string]any{"capabilities": []map[string]any{{"capability": "x-ignore-shared", "state": false}}}
	err = c.Execute(ctx, "migrate-set-capabilities", all, nil)
	if err == nil {
		err = c.Execute(ctx, "migrate-set-parameters", map[string]any{"announce-rounds": 5}, nil)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// converges is how long QEMU may look for its end before its downtime-limit is doubled: on
// a busy machine it finds none within 10 ms.
const converges = 10 * time.Second

// migrate answers what QEMU says of the downtime, in ms, and the downtime-limit at its end.
func migrate(ctx context.Context, from, to *rivalSide, limit int) (own float64, last int, err error) {
	clients := [2]*qmp.Client{}
	for i, s := range []*rivalSide{from, to} {
		if clients[i], err = s.own(ctx); err != nil {
			return 0, 0, err
		}
		defer clients[i].Close()
	}
	const uri = "tcp:127.0.0.1:7999"
	if err := clients[1].Execute(ctx, "migrate-incoming", map[string]any{"uri": uri}, nil); err != nil {
		return 0, 0, err
	}
	// To a QEMU that waits this says: run as soon as everything is there.
	if err := clients[1].Execute(ctx, "cont", nil, nil); err != nil {
		return 0, 0, err
	}
	bound := map[string]any{"max-bandwidth": int64(1) << 40, "downtime-limit": limit}
	if err := clients[0].Execute(ctx, "migrate-set-parameters", bound, nil); err != nil {
		return 0, 0, err
	}
	if err := clients[0].Execute(ctx, "migrate", map[string]any{"uri": uri}, nil); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	err = await(ctx, "see the migration complete", func() (bool, error) {
		select {
		case <-clients[1].Done():
			return false, fmt.Errorf("QEMU's destination ended: %w", clients[1].Err())
		default:
		}
		if time.Since(begun) > converges {
			begun, limit = time.Now(), 2*limit
			if err := clients[0].Execute(ctx, "migrate-set-parameters", map[string]any{"downtime-limit": limit},
				nil); err != nil {
				return false, err
			}
		}
		var info struct {
			Status   string
			Downtime float64
			Error    string `json:"error-desc"`
		}
		if err := clients[0].Execute(ctx, "query-migrate", nil, &info); err != nil {
			return false, err
		}
		own = info.Downtime
		if info.Status == "failed" || info.Status == "cancelled" {
			return false, errors.New("QEMU's migration " + info.Status + ": " + info.Error)
		}
		return info.Status == "completed", nil
	})
	if err != nil {
		return 0, 0, err
	}
	return own, limit, await(ctx, "see the destination run", func() (bool, error) {
		var state struct{ Status string }
		err := clients[1].Execute(ctx, "query-status", nil, &state)
		if err == nil && state.Status != "inmigrate" && state.Status != "running" {
			err = errors.New("QEMU's destination is " + state.Status)
		}
		return state.Status == "running", err
	})
}

// rivalBound is how long a step of QEMU's own migration may take: one that loses its guest's clock
// has lost it for good.
const rivalBound = time.Minute

// await asks again and again until it is so; what it waits for is in its error.
func await(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, rivalBound)
	defer cancel()
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		if err := observer.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
