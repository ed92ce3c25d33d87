package plugin

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

// verb is a command for one VM.
func (o *options) verb(use, short string, do ordering) *cobra.Command {
	return &cobra.Command{Use: use + " VM", Short: short, Args: one, RunE: func(cmd *cobra.Command, args []string) error {
		all, err := o.open()
		if err != nil {
			return err
		}
		vm, err := all.get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		want, err := do(cmd.Context(), all, vm)
		if err != nil {
			return fmt.Errorf("%s VM %s/%s: %w", use, all.namespace, vm.Name, err)
		}
		if o.detach {
			return say(cmd, "%s is ordered", want)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
		defer cancel()
		done, err := want.wait(ctx, all)
		if err != nil {
			return fmt.Errorf("%s VM %s/%s: %w", use, all.namespace, vm.Name, err)
		}
		return say(cmd, "%s", done)
	}}
}

func say(cmd *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), visible.Line(fmt.Sprintf(format, args...)))
	return err
}

func (v vms) get(ctx context.Context, id string) (*v1alpha1.VirtualMachine, error) {
	vm := &v1alpha1.VirtualMachine{}
	if err := v.Get(ctx, client.ObjectKey{Namespace: v.namespace, Name: id}, vm); err != nil {
		return nil, fmt.Errorf("VM %s/%s: %w. To see all VMs: %s ps -A", v.namespace, id, err, name())
	}
	return vm, nil
}

// change writes the wishes of a VM. It fails if somebody else has changed them since they were read.
func (v vms) change(ctx context.Context, vm *v1alpha1.VirtualMachine, edit func(*v1alpha1.VirtualMachineSpec)) error {
	was := client.MergeFromWithOptions(vm.DeepCopy(), client.MergeFromWithOptimisticLock{})
	edit(&vm.Spec)
	return v.Patch(ctx, vm, was)
}

// ordering writes an order for a VM, and answers what has to come of it.
type ordering func(context.Context, vms, *v1alpha1.VirtualMachine) (goal, error)

// mode sets the operating mode.
func mode(want v1alpha1.OperatingMode, phases ...v1alpha1.VMPhase) ordering {
	return func(ctx context.Context, v vms, vm *v1alpha1.VirtualMachine) (goal, error) {
		err := v.change(ctx, vm, func(s *v1alpha1.VirtualMachineSpec) { s.OperatingMode = want })
		return inPhase{vm: vm, phases: phases}, err
	}
}

func (o *options) hibernate() *cobra.Command {
	return o.verb("hibernate", "Put a VM to sleep in the registry", mode(v1alpha1.ModeHibernated, v1alpha1.VMHibernated))
}

func (o *options) start() *cobra.Command {
	return o.verb("start", "Run a VM that is stopped or asleep", mode(v1alpha1.ModeRunning, v1alpha1.VMRunning))
}

func (o *options) stop() *cobra.Command {
	return o.verb("stop", "End a VM that runs; its memory is gone", mode(v1alpha1.ModeStopped, v1alpha1.VMStopped,
		v1alpha1.VMSucceeded, v1alpha1.VMFailed))
}

// wake of a VM to a node is an order of its own, which comes before the one that the mode brings.
func (o *options) wake() *cobra.Command {
	to := ""
	cmd := o.verb("wake", "Wake a VM where it fits", func(ctx context.Context, v vms, vm *v1alpha1.VirtualMachine) (goal,
		error) {
		if vm.Status.Owner.Digest == "" {
			return nil, fmt.Errorf("it is %s, and not asleep: %w", vm.Status.Phase, errdefs.ErrFailedPrecondition)
		}
		if to != "" {
			if _, err := v.order(ctx, vm, v1alpha1.KindWake, to); err != nil {
				return nil, err
			}
		}
		return mode(v1alpha1.ModeRunning, v1alpha1.VMRunning)(ctx, v, vm)
	})
	cmd.Flags().StringVar(&to, "to", "", "node that shall have it (default: the scheduler's choice)")
	return cmd
}

func (o *options) checkpoint() *cobra.Command {
	return o.verb("checkpoint", "Take a snapshot of a VM that goes on", func(ctx context.Context, v vms,
		vm *v1alpha1.VirtualMachine) (goal, error) {
		return v.order(ctx, vm, v1alpha1.KindCheckpoint, "")
	})
}

// migrate changes the wish of a VM that has one: the operator would bring it back from another node.
func (o *options) migrate() *cobra.Command {
	to := ""
	cmd := o.verb("migrate", "Move a running VM to another node", func(ctx context.Context, v vms,
		vm *v1alpha1.VirtualMachine) (goal, error) {
		switch {
		case vm.Spec.NodeName == "":
			return v.order(ctx, vm, v1alpha1.KindMigrate, to)
		case to == "":
			return nil, fmt.Errorf("its spec.nodeName is %s, so it would come back: name another node by --to, or remove "+
				"spec.nodeName first: %w", vm.Spec.NodeName, errdefs.ErrFailedPrecondition)
		}
		err := v.change(ctx, vm, func(s *v1alpha1.VirtualMachineSpec) { s.NodeName = to })
		return inPhase{vm: vm, phases: []v1alpha1.VMPhase{v1alpha1.VMRunning}, node: to}, err
	})
	cmd.Flags().StringVar(&to, "to", "", "node that shall have it (default: the scheduler's choice)")
	return cmd
}

// order makes a VMOperation that goes with its VM.
func (v vms) order(ctx context.Context, vm *v1alpha1.VirtualMachine, kind v1alpha1.OperationKind, node string) (goal,
	error) {
	op := &v1alpha1.VMOperation{
		ObjectMeta: metav1.ObjectMeta{GenerateName: vm.Name + "-", Namespace: v.namespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine",
				Name: vm.Name, UID: vm.UID}}},
		Spec: v1alpha1.VMOperationSpec{VMRef: v1alpha1.VMRef{Name: vm.Name, UID: string(vm.UID)}, Kind: kind,
			NodeName: node, MigrationPolicy: vm.Spec.Migration},
	}
	if err := v.Create(ctx, op); err != nil {
		return nil, err
	}
	return succeeded{op}, nil
}

// abort calls off all orders of a VM that have not ended. One that is committed already goes on.
func (o *options) abort() *cobra.Command {
	return &cobra.Command{Use: "abort VM", Short: "Call off what is ordered of a VM and not committed", Args: one,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := o.open()
			if err != nil {
				return err
			}
			ops, err := all.orders(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			called := 0
			for i := range ops {
				op := &ops[i]
				if decide.Closed(op) || op.Spec.Abort {
					continue
				}
				was := client.MergeFrom(op.DeepCopy())
				op.Spec.Abort = true
				if err := all.Patch(cmd.Context(), op, was); err != nil {
					return fmt.Errorf("call off VMOperation %s/%s: %w", all.namespace, op.Name, err)
				}
				called++
				if err := say(cmd, "VMOperation %s is called off", op.Name); err != nil {
					return err
				}
			}
			if called == 0 {
				return fmt.Errorf("VM %s/%s has no order that could be called off. To see all: %s operations %s: %w",
					all.namespace, args[0], name(), args[0], errdefs.ErrNotFound)
			}
			return nil
		}}
}
