package schema

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Strict has the API server refuse a write with a field that its schema lacks. By default it drops the field.
const Strict = client.FieldValidation(metav1.FieldValidationStrict)

// Calm is for what cannot be done under another schema. It is no error: the guard tells it.
func Calm(do reconcile.Func) reconcile.Func {
	return func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		next, err := do(ctx, req)
		if errors.Is(err, ErrOutdated) {
			return ctrl.Result{RequeueAfter: Again}, nil
		}
		return next, err
	}
}
