//go:build integration

package scale

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"godwit.dev/godwit/migrate/kubernetes/pods"
)

// kubelets are the scheduler, and the kubelets and shims of all nodes. They act on what a watch tells, as the real ones
// do, so that they cost nothing while nothing happens.
func (f *fleet) kubelets(ctx context.Context) {
	work := make(chan *corev1.Pod, 4096)
	var workers sync.WaitGroup
	defer workers.Wait()
	for range atOnce {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-work:
					if f.pod(ctx, pod) != nil { // a conflict, as a rule
						time.AfterFunc(time.Second, func() { f.look(ctx, work, client.ObjectKeyFromObject(pod)) })
					}
				}
			}
		})
	}
	for ctx.Err() == nil {
		all, err := f.api.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), client.HasLabels{pods.LabelVM})
		if err != nil {
			f.errors.add(fmt.Errorf("watch pods: %w", err))
			continue
		}
		for e := range all.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted {
				select {
				case <-ctx.Done():
					return
				case work <- pod:
				}
			}
		}
	}
}

// look reads a pod once more.
func (f *fleet) look(ctx context.Context, work chan<- *corev1.Pod, key client.ObjectKey) {
	pod := &corev1.Pod{}
	if err := f.api.Get(ctx, key, pod); err != nil {
		return // a pod that is gone
	}
	select {
	case <-ctx.Done():
	case work <- pod:
	}
}

// pod does the next step of a pod.
func (f *fleet) pod(ctx context.Context, pod *corev1.Pod) error {
	if pod.Spec.NodeName == "" {
		h := fnv.New32()
		_, _ = h.Write([]byte(pod.Name))
		return f.api.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName(int(h.Sum32() % uint32(len(f.nodes))))}})
	}
	n := f.nodes[pod.Spec.NodeName]
	if !n.has(vmOf(pod)) {
		if err := n.claim(ctx, vmOf(pod)); err != nil {
			return err
		}
	}
	next := pod.DeepCopy()
	next.Status.Phase = corev1.PodRunning
	next.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "m:1", ImageID: "m@sha256:" +
		"2222222222222222222222222222222222222222222222222222222222222222", Ready: true}}
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == pods.GateRunning && c.Status == corev1.ConditionTrue
	})
	if pod.Status.Phase == corev1.PodRunning && is(pod, corev1.PodReady) == ready {
		return nil
	}
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady
	})
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status})
	return f.api.Status().Update(ctx, next)
}

func is(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}
