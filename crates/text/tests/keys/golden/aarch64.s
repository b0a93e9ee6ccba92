plugin_unlikely:
	nop
	.reloc .Ltmp, R_AARCH64_NONE, _ZN10key_plugin12PLUGIN_TRACEE
	add	x0, x0, #1
	ret
.LBB_2:
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	bl	plugin_slow
	add	x0, x0, #2
	ldp	x29, x30, [sp], #16
	ret

plugin_likely:
	nop
	.reloc .Ltmp, R_AARCH64_NONE, _ZN10key_plugin12PLUGIN_CHECKE
	add	x0, x0, #1
	ret
.LBB_2:
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	bl	plugin_slow
	add	x0, x0, #2
	ldp	x29, x30, [sp], #16
	ret

plugin_call:
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	bl	_ZN78_$LT$key_plugin..PLUGIN_SUM$u20$as$u20$palimpsest_text..key..hidden..Entry$GT$5entry5entryE
	add	x0, x0, #1
	ldp	x29, x30, [sp], #16
	ret
