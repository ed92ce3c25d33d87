package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/internal/visible"
	"godwit.dev/godwit/migrate/kubernetes/api/v1alpha1"
	"godwit.dev/godwit/migrate/kubernetes/decide"
)

func (o *options) ps() *cobra.Command {
	everywhere := false
	cmd := &cobra.Command{Use: "ps", Short: "List the VMs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := o.open()
			if err != nil {
				return err
			}
			if everywhere {
				all.namespace = ""
			}
			list := &v1alpha1.VirtualMachineList{}
			if err := all.List(cmd.Context(), list, client.InNamespace(all.namespace)); err != nil {
				return fmt.Errorf("list VMs: %w", err)
			}
			rows := [][]string{{"NAMESPACE", "NAME", "MODE", "PHASE", "READY", "NODE", "OPERATION", "AGE"}}
			for _, vm := range list.Items {
				operation := ""
				if vm.Status.Operation != nil {
					operation = string(vm.Status.Operation.Kind)
				}
				ready := "Unknown"
				if c := meta.FindStatusCondition(vm.Status.Conditions, decide.CondReady); c != nil {
					ready = string(c.Status)
				}
				rows = append(rows, []string{vm.Namespace, vm.Name, string(vm.Spec.OperatingMode), string(vm.Status.Phase),
					ready, vm.Status.Owner.Node, operation, age(&vm.CreationTimestamp)})
			}
			return table(cmd, rows)
		}}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "of all namespaces")
	return cmd
}

func (o *options) operations() *cobra.Command {
	return &cobra.Command{Use: "operations VM", Short: "List what was ordered of a VM, the newest first", Args: one,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := o.open()
			if err != nil {
				return err
			}
			ops, err := all.orders(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"NAME", "KIND", "PHASE", "SOURCE", "DESTINATION", "AGE", "REASON"}}
			for _, op := range ops {
				rows = append(rows, []string{op.Name, string(op.Spec.Kind), string(op.Status.Phase), op.Status.Source,
					cmp.Or(op.Status.Destination, op.Spec.NodeName), age(&op.CreationTimestamp), op.Status.Reason})
			}
			return table(cmd, rows)
		}}
}

// orders are those of a VM, the newest first.
func (v vms) orders(ctx context.Context, vm string) ([]v1alpha1.VMOperation, error) {
	list := &v1alpha1.VMOperationList{}
	if err := v.List(ctx, list, client.InNamespace(v.namespace)); err != nil {
		return nil, fmt.Errorf("list VMOperations: %w", err)
	}
	ops := slices.DeleteFunc(list.Items, func(op v1alpha1.VMOperation) bool { return op.Spec.VMRef.Name != vm })
	slices.SortStableFunc(ops, func(a, b v1alpha1.VMOperation) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	return ops, nil
}

func age(of *metav1.Time) string { return duration.HumanDuration(time.Since(of.Time)) }

// table writes rows in columns. Nothing that another user has written moves the cursor of this terminal.
func table(cmd *cobra.Command, rows [][]string) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = visible.Line(cmp.Or(row[i], "-"))
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}
