plugin_unlikely:
	movq	%rdi, %rax
	.p2align	3, , 4
	.byte	15
	.byte	31
	.byte	68
	.byte	0
	.byte	0
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
	.p2align	3, , 4
	.byte	15
	.byte	31
	.byte	68
	.byte	0
	.byte	0
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
