#include "textflag.h"

// func spawn(args *cloneArgs, size uintptr, first *call, at **call) (pid uintptr)
//
// The child shares the memory of its parent, which stands still until the child executes a program or
// ends. So the child writes nothing but *at and call.errno. It has no stack: it uses registers only.
TEXT ·spawn(SB), NOSPLIT, $0-40
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	first+16(FP), R12
	MOVQ	at+24(FP), R13
	MOVQ	$435, AX		// clone3
	SYSCALL
	TESTQ	AX, AX
	JEQ	next
	MOVQ	AX, pid+32(FP)
	RET
next:
	MOVQ	R12, 0(R13)
	MOVQ	0(R12), AX
	MOVQ	8(R12), DI
	MOVQ	16(R12), SI
	MOVQ	24(R12), DX
	MOVQ	32(R12), R10
	MOVQ	40(R12), R8
	MOVQ	48(R12), R9
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	ADDQ	$72, R12
	JMP	next
failed:
	NEGQ	AX
	MOVQ	AX, 64(R12)
	MOVQ	56(R12), BX		// call.skip
	TESTQ	BX, BX
	JEQ	end
	IMULQ	$72, BX
	ADDQ	BX, R12
	JMP	next
end:
	MOVQ	$231, AX		// exit_group
	MOVQ	$127, DI
	SYSCALL
	JMP	end
