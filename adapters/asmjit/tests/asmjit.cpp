// What a host of asmjit relies on: code, constants and variables in their places, calls, release, names, errors.

#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "palimpsest.h"

static bool release_fails = false;

// What the header under test calls: nothing that a host does makes palimpsest's own function fail.
static palimpsest_result failing_release(palimpsest_packs packs, const size_t *addresses, size_t count,
                                         size_t *released) {
  return release_fails ? PALIMPSEST_PANIC : palimpsest_alloc_release(packs, addresses, count, released);
}

#define palimpsest_alloc_release failing_release
#include "../support.h"
#undef palimpsest_alloc_release

using namespace asmjit;
using palimpsest::AsmjitRuntime;

namespace {

palimpsest_packs_stats stats(palimpsest_packs packs) {
  palimpsest_packs_stats stats = {};
  stats.size = sizeof stats;
  MUST(palimpsest_packs_get_stats(packs, &stats) == PALIMPSEST_OK);
  return stats;
}

using Called = int64_t (*)(int64_t);

// A function that adds `number`.
Called add_one(AsmjitRuntime &runtime, int64_t number) {
  CodeHolder code;
  MUST(code.init(runtime.environment()) == kErrorOk);
  x86::Assembler a(&code);
  a.mov(x86::rax, x86::rdi);
  a.add(x86::rax, number);
  a.ret();
  Called called = nullptr;
  MUST(runtime.add(&called, &code) == kErrorOk);
  return called;
}

// Who may do what at an address: the rights of its mapping.
std::string rights(const void *address) {
  std::ifstream maps("/proc/self/maps");
  auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    unsigned long long start = 0, end = 0;
    char rights[5] = {};
    MUST(std::sscanf(line.c_str(), "%llx-%llx %4s", &start, &end, rights) == 3);
    if (start <= wanted && wanted < end)
      return rights;
  }
  return "";
}

void functions_are_released_one_by_one() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    auto before = mappings();
    std::vector<Called> called;
    for (int i = 0; i < 500; ++i)
      called.push_back(add_one(runtime, i));
    MUST(mappings() < before + 50);
    for (int i = 0; i < 500; ++i)
      MUST(called[i](1000) == 1000 + i);
    for (int i = 0; i < 500; i += 2)
      MUST(runtime.release(called[i]) == kErrorOk);
    MUST(palimpsest_packs_reclaim(packs, nullptr) == PALIMPSEST_OK);
    MUST(stats(packs).programs == 250);
    for (int i = 1; i < 500; i += 2)
      MUST(called[i](1000) == 1000 + i);
    // Twice, inside, and of another runtime.
    MUST(runtime.release(called[0]) == kErrorInvalidArgument);
    MUST(runtime.release(reinterpret_cast<char *>(called[1]) + 1) == kErrorInvalidArgument);
    AsmjitRuntime other(packs);
    MUST(other.release(called[1]) == kErrorInvalidArgument);
    runtime.reset();
    MUST(runtime.release(called[1]) == kErrorInvalidArgument);
    MUST(add_one(runtime, 7)(1) == 8);
  }
  MUST(palimpsest_packs_reclaim(packs, nullptr) == PALIMPSEST_OK);
  MUST(stats(packs).programs == 0);
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

// Each section is where its rights are, and all refer to one another.
void sections_have_their_rights() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    for (int round = 0; round < 3; ++round) {
      // Fills a pack, so that the next code is behind the data, and the first is before it.
      CodeHolder filling;
      MUST(filling.init(runtime.environment()) == kErrorOk);
      x86::Assembler f(&filling);
      f.ret();
      filling.textSection()->setVirtualSize((2 << 20) - 64 * 16);
      void (*filled)() = nullptr;
      if (round != 0)
        MUST(runtime.add(&filled, &filling) == kErrorOk);
      CodeHolder code;
      MUST(code.init(runtime.environment()) == kErrorOk);
      Section *constants = nullptr, *variables = nullptr, *cold = nullptr;
      MUST(code.newSection(&constants, ".rodata", SIZE_MAX, SectionFlags::kReadOnly, 64, 1) == kErrorOk);
      MUST(code.newSection(&variables, ".data", SIZE_MAX, SectionFlags::kNone, 8, 2) == kErrorOk);
      MUST(code.newSection(&cold, ".cold", SIZE_MAX, SectionFlags::kExecutable, 16, 3) == kErrorOk);
      x86::Assembler a(&code);
      auto table = a.newLabel(), count = a.newLabel(), zeros = a.newLabel();
      auto rare = a.newLabel(), pointer = a.newLabel();
      // (index, &places): the table's entry, and how often it was asked for; 99 is rare.
      a.cmp(x86::rdi, 99);
      a.je(rare);
      a.lea(x86::rax, x86::ptr(table));
      a.mov(x86::ptr(x86::rsi), x86::rax);
      a.mov(x86::rax, x86::ptr(x86::rax, x86::rdi, 3));
      a.lea(x86::rdx, x86::ptr(count));
      a.mov(x86::ptr(x86::rsi, 8), x86::rdx);
      a.inc(x86::qword_ptr(x86::rdx));
      a.add(x86::rax, x86::ptr(count));
      a.add(x86::rax, x86::ptr(zeros));
      a.ret();
      a.section(cold);
      a.bind(rare);
      a.mov(x86::rax, x86::ptr(pointer));
      a.mov(x86::rax, x86::ptr(x86::rax));
      a.ret();
      a.section(constants);
      a.bind(table);
      int64_t values[] = {100, 200, 300};
      a.embed(values, sizeof values);
      a.section(variables);
      a.bind(count);
      a.embedUInt64(10);
      // An address of a label, which only the runtime knows.
      a.bind(pointer);
      a.embedLabel(table, 8);
      a.bind(zeros);
      variables->setVirtualSize(1000);
      int64_t (*function)(int64_t, const void **) = nullptr;
      MUST(runtime.add(&function, &code) == kErrorOk);
      const void *places[2] = {};
      MUST(function(1, places) == 211 && function(2, places) == 312 && function(99, places) == 100);
      MUST(rights(reinterpret_cast<const void *>(function)).substr(0, 3) == "r-x");
      MUST(rights(places[0]).substr(0, 3) == "r--" && reinterpret_cast<uintptr_t>(places[0]) % 64 == 0);
      MUST(rights(places[1]).substr(0, 3) == "rw-");
      // asmjit has fixed the distances between its sections.
      auto again = function;
      MUST(runtime.add(&again, &code) == kErrorInvalidState && again == nullptr);
      MUST(runtime.release(function) == kErrorOk);
    }
  }
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

int64_t far_function(int64_t value) { return value * 3; }

// Calls of functions of the program: through the table of addresses if they are far, and cut off if near.
void calls_leave_the_packs() {
  for (auto is_near : {false, true}) {
    palimpsest_packs_options options = {};
    options.near = is_near ? reinterpret_cast<size_t>(&far_function) : 0;
    auto packs = open_packs(options);
    {
      AsmjitRuntime runtime(packs);
      CodeHolder code;
      MUST(code.init(runtime.environment()) == kErrorOk);
      x86::Assembler a(&code);
      a.sub(x86::rsp, 8);
      a.call(imm(reinterpret_cast<uint64_t>(&far_function)));
      a.add(x86::rsp, 8);
      a.inc(x86::rax);
      a.ret();
      Called called = nullptr;
      MUST(runtime.add(&called, &code) == kErrorOk);
      MUST(called(5) == 16);
      palimpsest_alloc_found found = {};
      found.size = sizeof found;
      MUST(palimpsest_alloc_query(packs, reinterpret_cast<size_t>(called), &found) == PALIMPSEST_OK);
      MUST(found.read_only.len == 0 && found.read_write.len == 0);
      auto distance = reinterpret_cast<intptr_t>(&far_function) - reinterpret_cast<intptr_t>(called);
      auto is_direct = distance == static_cast<int32_t>(distance);
      MUST((found.code.len >= code.textSection()->bufferSize() + 8) == !is_direct);
    }
    MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
  }
}

// The compiler of asmjit, with a pool of constants and a loop.
void compiled_functions_run() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    CodeHolder code;
    MUST(code.init(runtime.environment()) == kErrorOk);
    x86::Compiler c(&code);
    auto *function = c.addFunc(FuncSignatureT<double, int64_t>());
    auto left = c.newInt64();
    auto sum = c.newXmmSd();
    function->setArg(0, left);
    auto loop = c.newLabel();
    c.xorpd(sum, sum);
    c.bind(loop);
    c.addsd(sum, c.newDoubleConst(ConstPoolScope::kGlobal, 0.25));
    c.dec(left);
    c.jnz(loop);
    c.ret(sum);
    c.endFunc();
    MUST(c.finalize() == kErrorOk);
    double (*called)(int64_t) = nullptr;
    MUST(runtime.add(&called, &code, "quarters") == kErrorOk);
    MUST(called(10) == 2.5);
  }
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

void perf_knows_names() {
  palimpsest_packs_options options = {};
  options.observers = PALIMPSEST_PERF_MAP;
  auto packs = open_packs(options);
  auto path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  {
    AsmjitRuntime runtime(packs);
    CodeHolder code;
    MUST(code.init(runtime.environment()) == kErrorOk);
    x86::Assembler a(&code);
    a.nop();
    a.ret();
    a.bind(a.newNamedLabel("second_function"));
    a.mov(x86::eax, 2);
    a.ret();
    Called called = nullptr;
    MUST(runtime.add(&called, &code, "first_function") == kErrorOk);
    auto address = reinterpret_cast<uintptr_t>(called);
    char lines[128];
    std::snprintf(lines, sizeof lines, "%llx 2 first_function\n%llx 6 second_function\n",
                  static_cast<unsigned long long>(address), static_cast<unsigned long long>(address + 2));
    std::ifstream map(path);
    std::string all((std::istreambuf_iterator<char>(map)), std::istreambuf_iterator<char>());
    MUST(all == lines);
  }
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
  unlink(path.c_str());
}

void threads_add_and_release_at_once() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&runtime, t] {
        for (int i = 0; i < 200; ++i) {
          auto called = add_one(runtime, t * 1000 + i);
          MUST(called(1) == t * 1000 + i + 1);
          if (i % 3 != 0)
            MUST(runtime.release(called) == kErrorOk);
        }
      });
    for (auto &thread : threads)
      thread.join();
    MUST(stats(packs).programs >= 4 * 67);
  }
  MUST(palimpsest_packs_reclaim(packs, nullptr) == PALIMPSEST_OK);
  MUST(stats(packs).programs == 0);
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

void children_run_what_they_inherit() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    auto called = add_one(runtime, 5);
    auto child = fork();
    MUST(child >= 0);
    if (child == 0) {
      auto is_right = called(1) == 6 && add_one(runtime, 9)(1) == 10 && runtime.release(called) == kErrorOk;
      _exit(is_right ? 0 : 1);
    }
    int status = 0;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    // What the child released is gone for the child alone.
    MUST(called(1) == 6 && runtime.release(called) == kErrorOk);
  }
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

// A release that palimpsest does not make, by a defect of it, can be asked for again.
void what_is_not_released_is_remembered() {
  auto packs = open_packs();
  {
    AsmjitRuntime runtime(packs);
    auto called = add_one(runtime, 5);
    release_fails = true;
    MUST(runtime.release(called) == kErrorInvalidState && runtime.release(called) == kErrorInvalidState);
    release_fails = false;
    MUST(called(1) == 6);
    MUST(runtime.release(called) == kErrorOk && runtime.release(called) == kErrorInvalidArgument);
    // The runtime's end releases it, too.
    auto kept = add_one(runtime, 7);
    release_fails = true;
    MUST(runtime.release(kept) == kErrorInvalidState);
    release_fails = false;
  }
  MUST(palimpsest_packs_reclaim(packs, nullptr) == PALIMPSEST_OK);
  MUST(stats(packs).programs == 0);
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
}

void mistakes_are_errors() {
  palimpsest_packs_options options = {};
  options.region_len = 16 << 20;
  auto packs = open_packs(options);
  {
    AsmjitRuntime runtime(packs);
    Called called = add_one(runtime, 1);
    CodeHolder empty;
    MUST(empty.init(runtime.environment()) == kErrorOk);
    MUST(runtime.add(&called, &empty) == kErrorNoCodeGenerated && called == nullptr);
    // A jump to nowhere.
    CodeHolder unbound;
    MUST(unbound.init(runtime.environment()) == kErrorOk);
    x86::Assembler a(&unbound);
    a.jmp(a.newLabel());
    MUST(runtime.add(&called, &unbound) == kErrorInvalidLabel && called == nullptr);
    // Longer than all packs.
    CodeHolder huge;
    MUST(huge.init(runtime.environment()) == kErrorOk);
    x86::Assembler b(&huge);
    b.ret();
    Section *data = nullptr;
    Section *first = nullptr;
    MUST(huge.newSection(&first, ".first", SIZE_MAX, SectionFlags::kNone, 8) == kErrorOk);
    first->setVirtualSize(8);
    MUST(huge.newSection(&data, ".data", SIZE_MAX, SectionFlags::kNone, 8) == kErrorOk);
    for (auto len : {uint64_t(1) << 28, UINT64_MAX, UINT64_MAX - 6}) {
      data->setVirtualSize(len);
      MUST(runtime.add(&called, &huge) != kErrorOk && called == nullptr);
    }
    // It fits now.
    data->setVirtualSize(64);
    MUST(runtime.add(&called, &huge) == kErrorOk);
    called(1);
    // A name is any bytes.
    CodeHolder named;
    MUST(named.init(runtime.environment()) == kErrorOk);
    x86::Assembler c(&named);
    c.ret();
    MUST(runtime.add(&called, &named, "\xff") == kErrorOk);
  }
  MUST(palimpsest_packs_reclaim(packs, nullptr) == PALIMPSEST_OK);
  MUST(stats(packs).programs == 0);
  MUST(palimpsest_packs_close(packs) == PALIMPSEST_OK);
  // Packs that are closed.
  AsmjitRuntime runtime(packs);
  CodeHolder code;
  MUST(code.init(runtime.environment()) == kErrorOk);
  x86::Assembler a(&code);
  a.ret();
  Called called = nullptr;
  MUST(runtime.add(&called, &code) == kErrorInvalidState);
}

} // namespace

int main() {
  const std::pair<const char *, void (*)()> tests[] = {
      {"functions_are_released_one_by_one", functions_are_released_one_by_one},
      {"sections_have_their_rights", sections_have_their_rights},
      {"calls_leave_the_packs", calls_leave_the_packs},
      {"compiled_functions_run", compiled_functions_run},
      {"perf_knows_names", perf_knows_names},
      {"threads_add_and_release_at_once", threads_add_and_release_at_once},
      {"children_run_what_they_inherit", children_run_what_they_inherit},
      {"what_is_not_released_is_remembered", what_is_not_released_is_remembered},
      {"mistakes_are_errors", mistakes_are_errors},
  };
  for (auto &test : tests) {
    test.second();
    std::printf("%s: ok\n", test.first);
  }
}
