// A function that is written while the program runs: `power N` computes powers of 3 by a chain of N multiplications.

#include <cstdio>
#include <cstdlib>

#include <asmjit/x86.h>

#include "palimpsest/asmjit.h"

int main(int argc, char **argv) {
  int exponent = argc > 1 ? std::atoi(argv[1]) : 5;
  palimpsest_packs packs;
  if (palimpsest_packs_open(nullptr, &packs) != PALIMPSEST_OK) {
    std::fprintf(stderr, "%s\n", palimpsest_error_message());
    return 1;
  }
  {
    // ANCHOR: runtime
    // One for the program, in place of `asmjit::JitRuntime`.
    palimpsest::AsmjitRuntime runtime(packs);

    asmjit::CodeHolder code;
    code.init(runtime.environment());
    asmjit::x86::Assembler a(&code);
    a.mov(asmjit::x86::eax, 1);
    for (int i = 0; i < exponent; ++i)
      a.imul(asmjit::x86::eax, asmjit::x86::edi);
    a.ret();

    int (*power)(int) = nullptr;
    if (runtime.add(&power, &code, "power") != asmjit::kErrorOk) {
      std::fprintf(stderr, "%s\n", palimpsest_error_message());
      return 1;
    }
    std::printf("%d\n", power(3));
    runtime.release(power);
    // ANCHOR_END: runtime
  }
  palimpsest_packs_close(packs);
}
