#include "textflag.h"

// Where godwit-init begins: the linker has it as the flag -E. If the program's one argument is "user-ns" (ArgUser), the
// process enters the user namespace that is descriptor 100, before the runtime starts threads. It hides its memory
// first: root of that namespace could trace it otherwise.
TEXT _godwit_entry(SB), NOSPLIT|NOFRAME, $0
	MOVQ	0(SP), AX
	CMPQ	AX, $2
	JNE	out
	MOVQ	16(SP), BX
	MOVQ	0(BX), CX
	MOVQ	$0x00736e2d72657375, DX
	CMPQ	CX, DX
	JNE	out
	MOVQ	$157, AX		// prctl(PR_SET_DUMPABLE, 0)
	MOVQ	$4, DI
	XORQ	SI, SI
	XORQ	DX, DX
	XORQ	R10, R10
	XORQ	R8, R8
	SYSCALL
	TESTQ	AX, AX
	JNE	out
	MOVQ	$308, AX		// setns(100, CLONE_NEWUSER)
	MOVQ	$100, DI
	MOVQ	$0x10000000, SI
	SYSCALL
	TESTQ	AX, AX
	JNE	out
	MOVQ	$1, ·entered(SB)
out:
	JMP	_rt0_amd64_linux(SB)
