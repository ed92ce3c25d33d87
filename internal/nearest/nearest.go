// Package nearest finds what somebody has meant who mistyped a word.
package nearest

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// mostWrong is how many letters of a word may be wrong for it to be taken for another.
	mostWrong = 2
	// mostMeant bounds the question.
	mostMeant = 3
)

// Words answers those of known that somebody may have meant, the nearest first.
func Words(said string, known []string) []string {
	var found []string
	for _, k := range known {
		far := distance(said, k)
		if far > 0 && (far < len(said) && far <= max(1, min(mostWrong, len(said)/3)) ||
			len(said) > mostWrong && strings.HasPrefix(k, said)) {
			found = append(found, k)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return distance(said, a) - distance(said, b) })
	return slices.Compact(found)
}

// Question is what a typo is answered with: "Did you mean web?". Empty: nothing that is known is near.
func Question(said string, known []string) string {
	words := Words(said, known)
	if len(words) == 0 {
		return ""
	}
	return fmt.Sprintf("Did you mean %s?", strings.Join(words[:min(len(words), mostMeant)], " or "))
}

// distance is how many letters have to be added, removed, changed or exchanged with their neighbour to make one word of
// the other.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			other := 1
			if a[i] == b[j] {
				other = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+other)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
