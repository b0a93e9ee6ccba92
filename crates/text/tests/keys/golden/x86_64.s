plugin_unlikely:
	movq	%rdi, %rax
	.byte	169
	.long	.LBB_3-.Ltmp
	.reloc .Ltmp, R_X86_64_NONE, _ZN10key_plugin12PLUGIN_TRACEE
	incq	%rax
	retq
.LBB_3:
	pushq	%rax
	movq	%rax, %rdi
	callq	*plugin_slow@GOTPCREL(%rip)
	addq	$2, %rax
	addq	$8, %rsp
	retq

plugin_likely:
	movq	%rdi, %rax
	.byte	169
	.long	.LBB_3-.Ltmp
	.reloc .Ltmp, R_X86_64_NONE, _ZN10key_plugin12PLUGIN_CHECKE
	incq	%rax
	retq
.LBB_3:
	pushq	%rax
	movq	%rax, %rdi
	callq	*plugin_slow@GOTPCREL(%rip)
	addq	$2, %rax
	addq	$8, %rsp
	retq

plugin_call:
	pushq	%rax
	callq	_ZN78_$LT$key_plugin..PLUGIN_SUM$u20$as$u20$palimpsest_text..key..hidden..Entry$GT$5entry5entryE
	incq	%rax
	popq	%rcx
	retq
