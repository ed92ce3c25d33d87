package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"godwit.dev/godwit/api/config"
	nodev1 "godwit.dev/godwit/api/node/v1"
	"godwit.dev/godwit/api/record"
	"godwit.dev/godwit/cli/screen"
)

// finding is one line of doctor. Remedy is empty when all is well. What is not OK and not
// Fatal costs speed or a feature.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Fatal  bool   `json:"fatal,omitempty"` // no VM can run
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func newDoctor(opts *options) *cobra.Command {
	strict, repairs, dry := false, false, false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this host can run, and why not",
		Long: "Tell what this host can run, and why not.\n" +
			"--fix repairs what is safe, and asks nothing: it makes directories, takes rights to them and to keys from " +
			"others than root, loads modules of the kernel, writes containerd's drop-in, and starts containerd and godwitd " +
			"where they do not run. It restarts, removes and installs nothing, and no VM notices. The rest it leaves to you, " +
			"and says what to do.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dry && !repairs {
				return fmt.Errorf("--dry-run says what --fix would do. Give both: %w", errdefs.ErrInvalidArgument)
			}
			if repairs {
				return repaired(cmd, opts, strict, dry)
			}
			findings := diagnose(cmd.Context(), opts)
			if err := report(cmd, opts, findings); err != nil {
				return err
			}
			return verdict(findings, strict)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	cmd.Flags().BoolVar(&repairs, "fix", false, "repair what is safe, and say what is left to do")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "with --fix: only say what it would do")
	return cmd
}

// repaired says what it has repaired, and the verdict after that.
func repaired(cmd *cobra.Command, opts *options, strict, dry bool) error {
	lines := cmd.OutOrStdout()
	if opts.machine() {
		lines = &notes{opts: opts, cmd: cmd}
	}
	findings, err := fix(cmd.Context(), lines, func(ctx context.Context) []finding { return diagnose(ctx, opts) },
		newHost(opts), dry)
	if opts.machine() {
		err = errors.Join(err, listFindings(cmd, opts, findings))
	} else {
		fmt.Fprintln(lines, judged(findings, 0))
	}
	return errors.Join(err, verdict(findings, strict))
}

// verdict fails for the first thing because of which no VM can run, or, if strict, for the
// first that is not well.
func verdict(findings []finding, strict bool) error {
	for _, f := range findings {
		if f.Fatal || strict && !f.OK {
			return fmt.Errorf("%s: %s: %w", f.Check, f.Remedy, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// report prints what was found. On a screen it is what matters, unless all is asked for, and a verdict.
func report(cmd *cobra.Command, opts *options, findings []finding) error {
	if opts.format() != screen.Text {
		return listFindings(cmd, opts, findings)
	}
	shown, more := findings, 0
	if !opts.verbose {
		shown, more = important(findings)
	}
	if err := listFindings(cmd, opts, shown); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), judged(findings, more))
	return err
}

// shownFindings fit a screen of 24 lines, with a title and the verdict.
const shownFindings = 21

// important are the findings that are not well, the worst first, and where VMs sleep. more is how many of them
// found no room.
func important(findings []finding) (shown []finding, more int) {
	for _, wanted := range []func(finding) bool{
		func(f finding) bool { return f.Fatal },
		func(f finding) bool { return !f.Fatal && !f.OK },
		func(f finding) bool { return f.OK && (f.Check == storeCheck || f.Check == "configuration") },
	} {
		for _, f := range findings {
			if wanted(f) {
				shown = append(shown, f)
			}
		}
	}
	keep := min(len(shown), shownFindings)
	return shown[:keep], len(shown) - keep
}

// storeCheck is godwitd's word on where VMs sleep.
const storeCheck = "store"

// judged is the one line that says what all findings come to.
func judged(findings []finding, more int) string {
	well, warnings, fatal := 0, 0, 0
	for _, f := range findings {
		switch {
		case f.Fatal:
			fatal++
		case f.OK:
			well++
		default:
			warnings++
		}
	}
	text := "verdict: this node runs VMs"
	if fatal > 0 {
		text = fmt.Sprintf("verdict: no VM can run here: mend what is marked FAIL (%d)", fatal)
	}
	text += fmt.Sprintf("; %d checks are well, %d have a warning", well, warnings)
	if more > 0 {
		text += fmt.Sprintf(", %d are not shown", more)
	}
	return text + " (godwit doctor -v tells all)"
}

func listFindings(cmd *cobra.Command, opts *options, findings []finding) error {
	l := screen.List{
		Columns: screen.Columns("STATE", "CHECK", "DETAIL", "REMEDY"),
		Whole:   func(left []screen.Item) any { return screen.Values[finding](left) },
	}
	for _, f := range findings {
		l.Items = append(l.Items, screen.Item{Value: f, Name: f.Check, Row: []string{f.mark(), f.Check, f.Detail, f.Remedy}})
	}
	format := opts.format()
	if format == screen.Text && opts.verbose {
		format = screen.Wide // remedies are not cut
	}
	return l.Print(cmd.OutOrStdout(), format, screen.ListFlags{})
}

func (f finding) mark() string {
	switch {
	case f.Fatal:
		return "FAIL"
	case !f.OK:
		return "warn"
	}
	return "ok"
}

// diagnose checks this host, then the daemon. Every check runs, whatever the others say.
func diagnose(ctx context.Context, opts *options) []finding {
	cfg, err := config.Load(opts.config)
	if err != nil {
		return []finding{{Check: "configuration", Fatal: true, Detail: err.Error(),
			Remedy: "mend the file, or name another with --config"}}
	}
	findings := []finding{{Check: "configuration", OK: true, Detail: "node " + cfg.Node}}
	for _, r := range cfg.Renamed {
		findings = append(findings, finding{Check: "configuration", Detail: fmt.Sprintf("%s has %s by its old name", r.File,
			r.New), Remedy: "rename " + r.Old + ", which the next release does not know"})
	}
	findings = append(findings, checkFile("guest kernel", cfg.Guest.Kernel, "guest.kernel"),
		checkFile("guest initramfs", cfg.Guest.Initrd, "guest.initrd"))
	findings = append(findings, checkHost(ctx, cfg)...)
	findings = append(findings, checkKernel(ctx, cfg)...)
	findings = append(findings, checkFiles(cfg)...)
	findings = append(findings, checkRuntimePath(containerdConfig, cfg.Containerd.Runtime),
		checkHandler(containerdConfig, cfg.Containerd.Runtime))
	return append(findings, checkDaemon(ctx, opts, cfg)...)
}

// checkContainerd looks whether somebody listens, where no godwitd can say more.
func checkContainerd(ctx context.Context, socket string) finding {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return finding{Check: containerdCheck, Detail: err.Error(),
			Remedy: "start containerd, 2.3 or newer (docs/how-to/install.md)"}
	}
	_ = c.Close()
	return finding{Check: containerdCheck, OK: true, Detail: socket}
}

func checkFile(check, path, key string) finding {
	info, err := os.Stat(path)
	if err != nil {
		return finding{Check: check, Fatal: true, Detail: err.Error(),
			Remedy: "run make guest and make install, or set " + key}
	}
	return finding{Check: check, OK: true, Detail: fmt.Sprintf("%s, %s", path, screen.Bytes(uint64(info.Size())))}
}

// checkDaemon asks godwitd, and has it ask what it needs itself.
func checkDaemon(ctx context.Context, opts *options, cfg *config.Config) []finding {
	f := finding{Check: daemonCheck}
	node, conn, err := opts.dial(ctx)
	if err != nil {
		f.Detail, f.Remedy = err.Error(), "start godwitd; without it VMs run, but none sleeps or wakes"
		f.Fatal = cfg.UsesRecords()
		return []finding{checkContainerd(ctx, cfg.Containerd.Address), f}
	}
	defer conn.Close()
	info, err := node.Info(ctx, &nodev1.InfoRequest{Check: true})
	if err != nil {
		f.Detail, f.Remedy = record.FromWire(err).Error(), "look at godwitd's log"
		return []finding{f}
	}
	f.OK, f.Detail = true, "version "+info.GetVersion()
	return append([]finding{f}, told(info)...)
}

// told are the daemon's own findings.
func told(info *nodev1.InfoResponse) []finding {
	f := finding{Check: "controller", OK: info.GetControllerReachable(), Detail: info.GetController()}
	if !f.OK {
		f.Detail, f.Remedy = info.GetError(), "start the controller "+info.GetController()+", or mend controller.address"
	}
	all := []finding{f}
	for _, c := range info.GetChecks() {
		f := finding{Check: c.GetName(), OK: c.GetError() == "", Detail: c.GetDetail(), Remedy: c.GetRemedy()}
		if !f.OK {
			f.Detail = c.GetError()
		}
		all = append(all, f)
	}
	return all
}
