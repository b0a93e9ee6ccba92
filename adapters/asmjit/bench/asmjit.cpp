// Packs beside asmjit's own runtime, in one run: functions that are added one by one and called in turn. Arguments are
// those of `measure.h`.

#include <memory>

#include "../../measure.h"
#include "../support.h"

using namespace asmjit;

namespace {

using Called = int64_t (*)(int64_t);

// The body of a function of some 60 bytes: different arithmetic for each number, and a constant.
void write(CodeHolder &code, size_t number) {
  x86::Assembler a(&code);
  auto constant = a.newLabel();
  a.mov(x86::rax, x86::rdi);
  a.imul(x86::rax, x86::ptr(constant));
  a.add(x86::rax, static_cast<int32_t>(number + 1));
  for (int i = 0; i < 6; ++i) {
    a.rol(x86::rax, 7 + i);
    a.xor_(x86::rax, x86::rdi);
  }
  a.ret();
  a.align(AlignMode::kZero, 8);
  a.bind(constant);
  a.embedUInt64(0x9e3779b97f4a7c15 + number);
}

// Adds `count` functions, calls them in turn and releases them one by one.
template <typename Runtime> measure::Figures add_and_call(Runtime &runtime, size_t count) {
  std::vector<Called> functions(count);
  CodeHolder code;
  auto load = [&](size_t i) {
    code.reset();
    MUST(code.init(runtime.environment()) == kErrorOk);
    write(code, i);
    MUST(runtime.add(&functions[i], &code) == kErrorOk);
  };
  return measure::load_and_call(
      count, load, [&](size_t i, int64_t x) { return functions[i](x); },
      [&](size_t i) { MUST(runtime.release(functions[i]) == kErrorOk); });
}

// `options` as for `JitAllocator`: none is the default, memory that is writable and executable.
measure::Figures by_asmjit(size_t count, JitAllocatorOptions options) {
  JitAllocator::CreateParams parameters = {};
  parameters.options = options;
  JitRuntime runtime(&parameters);
  return add_and_call(runtime, count);
}

} // namespace

int main(int argc, char **argv) {
  auto in_packs = [](size_t count) {
    auto packs = open_packs();
    palimpsest::AsmjitRuntime runtime(packs);
    return add_and_call(runtime, count);
  };
  auto plain = [](size_t count) { return by_asmjit(count, JitAllocatorOptions::kNone); };
  auto dual = [](size_t count) { return by_asmjit(count, JitAllocatorOptions::kUseDualMapping); };
  return measure::run("asmjit", {{"packs", in_packs}, {"dual", dual}, {"plain", plain}}, argc, argv);
}
