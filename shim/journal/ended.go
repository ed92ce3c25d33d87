package journal

import "slices"

// maxEnded bounds the names of containers that ended, as those of a pod are bounded.
const maxEnded = 256

// NoteEnd notes how the container of that name ended, in place of an earlier one. The oldest goes if there are too
// many.
func (j *Journal) NoteEnd(name string, e Exit) {
	j.ForgetEnd(name)
	j.Ended = append(j.Ended[max(0, len(j.Ended)+1-maxEnded):], EndedMember{Name: name, Exit: e})
}

// OweEnd is NoteEnd of one that the first task of that name is to tell.
func (j *Journal) OweEnd(name string, e Exit) {
	j.NoteEnd(name, e)
	j.Ended[len(j.Ended)-1].Owed = true
}

// OweEnds takes the ends over that came with the pod, in place of any others.
func (j *Journal) OweEnds(all []EndedMember) {
	j.Ended = slices.Clone(all)
	for i := range j.Ended {
		j.Ended[i].Owed = true
	}
}

// TellEnd notes that a task tells the end of that name.
func (j *Journal) TellEnd(name string) {
	if e := j.EndOf(name); e != nil {
		j.NoteEnd(name, *e)
	}
}

// OwedEnd is EndOf of one that no task has told here.
func (j *Journal) OwedEnd(name string) *Exit {
	for _, e := range j.Ended {
		if e.Name == name && e.Owed {
			return &e.Exit
		}
	}
	return nil
}

// ForgetEnd forgets the end of a container of that name: there is one again.
func (j *Journal) ForgetEnd(name string) {
	j.Ended = slices.DeleteFunc(slices.Clone(j.Ended), func(e EndedMember) bool { return e.Name == name })
}

// EndOf is how the last container of that name ended; nil: none did, or there is one now.
func (j *Journal) EndOf(name string) *Exit {
	for _, e := range j.Ended {
		if e.Name == name {
			return &e.Exit
		}
	}
	return nil
}
