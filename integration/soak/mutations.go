package soak

// mutations are the faults that a soak can have built back in, by name.
var mutations = map[string][]mutation{
	// A directory that cannot be read has no VMs, and who is not in the list is given up.
	// Seed 142 finds it in its first round, in six minutes: step 2 takes the descriptors of node b's
	// godwitd away for 100 s. After that it has given up four VMs that run there
	// ("Disowned .. nothing of the VM is left on its node"), and the judge finds them lost.
	"blind list": {
		{"migrate/node/known.go", "\tif errors.Is(err, fs.ErrNotExist) {\n\t\treturn nil, nil\n\t}\n\tfor _, e := range " +
			"all {", "\tif err != nil {\n\t\treturn nil, nil\n\t}\n\tfor _, e := range all {"},
		{"migrate/engine/round_reconcile.go", "\tif !r.nothing(ctx, rec.GetVm()) {\n\t\treturn nil\n\t}\n\tkey :=",
			"\tkey :="},
		{"migrate/engine/round_reconcile.go", "\tif !ended(rec) && !r.since(key) {",
			"\tif !(ended(rec) && r.nothing(ctx, rec.GetVm())) && !r.since(key) {"},
		{"migrate/engine/round_reconcile.go", "\t\tif !r.nothing(ctx, rec.GetVm()) {\n\t\t\treturn nil\n\t\t}\n\t\tif err :=",
			"\t\tif err :="},
	},
	// A store that was put back from a copy is believed at once: no incarnation, no report, no doubt. What moved after the
	// copy was made runs where no record says so. Seed 4191, with 6 VMs, finds it in its first round, in seven minutes:
	// the copy is made at step 3 and put back 100 s later, after which the judge hears two VMs that no node owns.
	"old store": {
		{"migrate/controller/incarnation.go", "\tnow := i.now()\n\tstate, err := i.change(ctx, func(state " +
			"*nodev1.StoreState) (bool, error) {\n",
			"\tnow := i.now()\n\tstate, err := i.change(ctx, func(state *nodev1.StoreState) (bool, error) {\n\t\tif " +
				"now.Unix() > 0 {\n\t\t\treturn false, nil\n\t\t}\n"},
		{"migrate/engine/round_store.go", "\treturn c.Store.Doubt(ctx)\n", "\treturn nil\n"},
	},
	// A pod wakes when its first container is started. One whose sandbox is removed before the second Start must sleep
	// on, and is lost: it runs by then. Seed 7101 finds it in its first round, in five minutes, with
	// -vms 0 -pods 3 -pod-each 1 -faultless: the judge finds a pod lost to which nothing was done.
	"half a pod": {
		{"shim/pod_armed.go", "\tif len(missing) == 0 && !moves {", "\tif (len(missing) == 0 || t.member != nil) " +
			"&& !moves {"},
	},
}
