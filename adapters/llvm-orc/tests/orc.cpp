// What a host of ORC relies on: calls, freeing one by one, unwinding, names, threads, children, errors.

#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"

#include "../support.h"
#include "palimpsest/orc.h"

using namespace llvm;
using namespace llvm::orc;
using palimpsest::orc::PackMemoryManager;

namespace {

palimpsest_packs open_packs(size_t region_len = 0, uint32_t observers = 0) {
  palimpsest_packs_options options = {};
  options.size = sizeof options;
  options.region_len = region_len;
  options.observers = observers;
  palimpsest_packs packs;
  must(palimpsest_packs_open(&options, &packs));
  return packs;
}

palimpsest_packs_stats stats(palimpsest_packs packs) {
  palimpsest_packs_stats stats = {};
  stats.size = sizeof stats;
  must(palimpsest_packs_get_stats(packs, &stats));
  return stats;
}

Error try_add(LLJIT &jit, ResourceTrackerSP tracker, const std::string &source) {
  auto context = std::make_unique<LLVMContext>();
  SMDiagnostic problem;
  auto module = parseAssemblyString(source, problem, *context);
  if (!module)
    problem.print("orc", errs());
  MUST(module);
  return jit.addIRModule(std::move(tracker), ThreadSafeModule(std::move(module), std::move(context)));
}

ResourceTrackerSP add(LLJIT &jit, const std::string &source) {
  auto tracker = jit.getMainJITDylib().createResourceTracker();
  must(try_add(jit, tracker, source));
  return tracker;
}

// A function that has code, a constant and a variable: its n-th call returns `x * 3 + number + n`.
std::string function(const std::string &name, int number) {
  auto n = std::to_string(number);
  return "@table_" + name + " = internal constant [2 x i64] [i64 " + n + ", i64 3]\n" +
         "@calls_" + name + " = internal global i64 0\n" +
         "define i64 @" + name + "(i64 %x, i64 %i) {\n" +
         "  %place = getelementptr [2 x i64], [2 x i64]* @table_" + name + ", i64 0, i64 %i\n" +
         "  %factor = load i64, i64* %place\n" +
         "  %product = mul i64 %x, %factor\n" +
         "  %before = load i64, i64* @calls_" + name + "\n" +
         "  %calls = add i64 %before, 1\n" +
         "  store i64 %calls, i64* @calls_" + name + "\n" +
         "  %sum = add i64 %product, %calls\n" +
         "  %all = add i64 %sum, " + n + "\n" +
         "  ret i64 %all\n}\n";
}

using Called = int64_t(int64_t, int64_t);

void functions_are_freed_one_by_one() {
  auto packs = open_packs();
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    auto before = mappings();
    constexpr int count = 500;
    std::vector<ResourceTrackerSP> trackers;
    std::vector<Called *> called;
    for (int i = 0; i < count; ++i) {
      auto name = "f" + std::to_string(i);
      trackers.push_back(add(*jit, function(name, i)));
      called.push_back(find<Called>(*jit, name));
    }
    for (int round = 1; round <= 2; ++round)
      for (int i = 0; i < count; ++i)
        MUST(called[i](10, 1) == 30 + i + round);
    // Packs and their second views, and what the heap took meanwhile: not one for each function.
    MUST(mappings() < before + 50);
    auto full = stats(packs);
    for (int i = 0; i < count; i += 2)
      must(trackers[i]->remove());
    must(palimpsest_packs_reclaim(packs, nullptr));
    auto half = stats(packs);
    MUST(half.programs * 2 == full.programs);
    MUST(half.used_bytes < full.used_bytes);
    for (int i = 1; i < count; i += 2)
      MUST(called[i](10, 1) == 30 + i + 3);
    palimpsest_alloc_found found = {};
    found.size = sizeof found;
    MUST(palimpsest_alloc_query(packs, reinterpret_cast<size_t>(called[0]), &found) == PALIMPSEST_NOT_FOUND);
    must(palimpsest_alloc_query(packs, reinterpret_cast<size_t>(called[1]), &found));
    // LLVM 14 treats all data as writable.
    MUST(found.read_only.len + found.read_write.len >= 24);
    // The same name again, in the place of the old function.
    auto again = add(*jit, function("f0", 1000));
    MUST(find<Called>(*jit, "f0")(1, 1) == 3 + 1000 + 1);
  }
  must(palimpsest_packs_reclaim(packs, nullptr));
  MUST(stats(packs).programs == 0);
  must(palimpsest_packs_close(packs));
}

extern "C" void throw_seven() { throw std::runtime_error("seven"); }

void exceptions_pass_through() {
  auto packs = open_packs();
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    add(*jit, "define void @through(void ()* %f) uwtable {\n  call void %f()\n  call void %f()\n  ret void\n}\n");
    auto *through = find<void(void (*)())>(*jit, "through");
    for (int i = 0; i < 100; ++i) {
      bool is_caught = false;
      try {
        through(throw_seven);
      } catch (const std::runtime_error &error) {
        is_caught = std::string(error.what()) == "seven";
      }
      MUST(is_caught);
    }
  }
  must(palimpsest_packs_close(packs));
}

// By the tables that packs register, without LLVM's plugin. The second function has a personality and data of its own.
void exceptions_pass_through_by_the_packs() {
  auto packs = open_packs(0, PALIMPSEST_UNWIND);
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory, false);
    auto tracker = add(*jit, "declare i32 @__gxx_personality_v0(...)\n"
                             "define i32 @catches(void ()* %f) uwtable personality i8* bitcast (i32 (...)* "
                             "@__gxx_personality_v0 to i8*) {\n"
                             "  invoke void @through(void ()* %f) to label %done unwind label %caught\n"
                             "done:\n  ret i32 1\n"
                             "caught:\n  %pad = landingpad { i8*, i32 } catch i8* null\n"
                             "  %exception = extractvalue { i8*, i32 } %pad, 0\n"
                             "  call i8* @__cxa_begin_catch(i8* %exception)\n  call void @__cxa_end_catch()\n"
                             "  ret i32 2\n}\n"
                             "declare i8* @__cxa_begin_catch(i8*)\ndeclare void @__cxa_end_catch()\n"
                             "define void @through(void ()* %f) noinline uwtable {\n"
                             "  call void %f()\n  call void %f()\n  ret void\n}\n");
    auto *through = find<void(void (*)())>(*jit, "through");
    bool is_caught = false;
    try {
      through(throw_seven);
    } catch (const std::runtime_error &error) {
      is_caught = std::string(error.what()) == "seven";
    }
    MUST(is_caught);
    auto *catches = find<int(void (*)())>(*jit, "catches");
    MUST(catches(throw_seven) == 2);
    MUST(catches([] {}) == 1);
    must(tracker->remove());
  }
  MUST(stats(packs).observer_errors == 0);
  must(palimpsest_packs_close(packs));
}

// A function whose unwind tables have the long form of a record's length, which JITLink lets pass.
std::string with_long_records(const std::string &name) {
  std::string assembly;
  for (const char *line : {".text", ".type NAME, @function", "NAME: ret", ".size NAME, 1",
                           ".section .eh_frame,\\22a\\22,@unwind", "cie: .long 0xffffffff",
                           ".quad cie_end - cie_start", "cie_start: .long 0", ".byte 1", ".asciz \\22zR\\22",
                           ".uleb128 1", ".sleb128 -8", ".byte 16", ".uleb128 1", ".byte 0x1b", ".balign 8",
                           "cie_end: .long fde_end - fde_start", "fde_start: .long fde_start - cie",
                           ".long NAME - .", ".long 1", ".uleb128 0", ".balign 8", "fde_end:"}) {
    std::string words = line;
    for (size_t at; (at = words.find("NAME")) != std::string::npos;)
      words.replace(at, 4, name);
    assembly += "module asm \"" + words + "\"\n";
  }
  return assembly + "declare void @" + name + "()\n" + "define void @calls_" + name + "() nounwind {\n  call void @" +
         name + "()\n  ret void\n}\n";
}

// Links a function whose tables are not known. Returns what was said, and whether it was linked.
std::pair<std::string, bool> link_without_tables(const std::string &source, bool is_allowed) {
  auto packs = open_packs(0, PALIMPSEST_UNWIND);
  std::string words;
  bool is_linked = false;
  {
    PackMemoryManager::OnNoTables tell;
    if (is_allowed)
      tell = [&](Error error) { words += toString(std::move(error)); };
    PackMemoryManager memory(packs, tell);
    auto jit = make_jit(memory, false);
    jit->getExecutionSession().setErrorReporter([&](Error error) { words += toString(std::move(error)); });
    add(*jit, source);
    auto symbol = jit->lookup("calls_old");
    is_linked = static_cast<bool>(symbol);
    if (is_linked)
      find<void()>(*jit, "calls_old")();
    consumeError(symbol.takeError());
  }
  must(palimpsest_packs_reclaim(packs, nullptr));
  MUST(stats(packs).programs == 0);
  must(palimpsest_packs_close(packs));
  return {words, is_linked};
}

void unknown_unwind_tables_are_told() {
  std::string only_sframe = "module asm \".section .sframe,\\22a\\22\"\nmodule asm \".quad 0\"\n"
                            "define void @calls_old() nounwind {\n  ret void\n}\n";
  const std::pair<std::string, const char *> cases[] = {
      {with_long_records("old"), "at 0 of `.eh_frame` a record"},
      {only_sframe, "only `.sframe`"},
  };
  for (auto &one : cases) {
    auto refused = link_without_tables(one.first, false);
    MUST(!refused.second);
    MUST(refused.first.find(one.second) != std::string::npos);
    MUST(refused.first.find("`on_no_tables`") != std::string::npos);
    auto told = link_without_tables(one.first, true);
    MUST(told.second);
    MUST(told.first.find(one.second) != std::string::npos);
  }
}

void perf_knows_names() {
  auto packs = open_packs(0, PALIMPSEST_PERF_MAP);
  auto path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    add(*jit, function("named_by_me", 1));
    auto address = reinterpret_cast<uintptr_t>(find<Called>(*jit, "named_by_me"));
    char start[32];
    std::snprintf(start, sizeof start, "%llx ", static_cast<unsigned long long>(address));
    std::ifstream map(path);
    bool is_there = false;
    for (std::string line; std::getline(map, line);)
      is_there |= line.compare(0, std::string(start).size(), start) == 0 &&
                  line.find("named_by_me") != std::string::npos;
    MUST(is_there);
    // A symbol that claims to be longer than its section ends with it.
    add(*jit, "module asm \".text\"\nmodule asm \".type claims, @function\"\n"
              "module asm \"claims: ret\"\nmodule asm \".size claims, 4096\"\n"
              "declare void @claims()\ndefine void @calls() {\n  call void @claims()\n  ret void\n}\n");
    find<void()>(*jit, "calls")();
    map.clear();
    is_there = false;
    for (std::string line; std::getline(map, line);)
      if (line.find(" claims") != std::string::npos)
        is_there = std::stoul(line.substr(line.find(' ') + 1), nullptr, 16) < 4096;
    MUST(is_there);
  }
  must(palimpsest_packs_close(packs));
  unlink(path.c_str());
}

void threads_link_at_once() {
  auto packs = open_packs();
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 40; ++i) {
          auto name = "t" + std::to_string(t) + "_" + std::to_string(i);
          auto tracker = add(*jit, function(name, i));
          MUST(find<Called>(*jit, name)(2, 1) == 6 + i + 1);
          if (i % 3 == 0)
            must(tracker->remove());
        }
      });
    for (auto &thread : threads)
      thread.join();
  }
  must(palimpsest_packs_close(packs));
}

void children_have_what_they_inherit() {
  auto packs = open_packs();
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    add(*jit, function("inherited", 7));
    auto *inherited = find<Called>(*jit, "inherited");
    MUST(inherited(1, 1) == 3 + 7 + 1);
    auto child = fork();
    MUST(child >= 0);
    if (child == 0)
      _exit(inherited(1, 1) == 3 + 7 + 2 ? 0 : 1);
    int status = 0;
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // The child's variable was its own.
    MUST(inherited(1, 1) == 3 + 7 + 2);
  }
  must(palimpsest_packs_close(packs));
}

void mistakes_are_errors() {
  // A table that is longer than all packs may be.
  auto packs = open_packs(16 << 20);
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    std::string words;
    jit->getExecutionSession().setErrorReporter([&](Error error) { words += toString(std::move(error)); });
    add(*jit, "@huge = global [268435456 x i8] zeroinitializer\n"
              "define i8* @big() {\n"
              "  ret i8* getelementptr ([268435456 x i8], [268435456 x i8]* @huge, i64 0, i64 0)\n}\n");
    auto symbol = jit->lookup("big");
    MUST(!symbol);
    consumeError(symbol.takeError());
    MUST(words.find("of 268435520 bytes") != std::string::npos);
    // The next object is still linked.
    add(*jit, function("small", 1));
    MUST(find<Called>(*jit, "small")(1, 1) == 3 + 1 + 1);
  }
  must(palimpsest_packs_reclaim(packs, nullptr));
  MUST(stats(packs).programs == 0);
  must(palimpsest_packs_close(packs));
  // Packs that are closed.
  PackMemoryManager memory(packs);
  auto jit = make_jit(memory);
  std::string words;
  jit->getExecutionSession().setErrorReporter([&](Error error) { words += toString(std::move(error)); });
  add(*jit, function("late", 1));
  auto symbol = jit->lookup("late");
  MUST(!symbol);
  consumeError(symbol.takeError());
  MUST(!words.empty());
}

} // namespace

int main() {
  prepare_llvm();
  const std::pair<const char *, void (*)()> tests[] = {
      {"functions_are_freed_one_by_one", functions_are_freed_one_by_one},
      {"exceptions_pass_through", exceptions_pass_through},
      {"exceptions_pass_through_by_the_packs", exceptions_pass_through_by_the_packs},
      {"unknown_unwind_tables_are_told", unknown_unwind_tables_are_told},
      {"perf_knows_names", perf_knows_names},
      {"threads_link_at_once", threads_link_at_once},
      {"children_have_what_they_inherit", children_have_what_they_inherit},
      {"mistakes_are_errors", mistakes_are_errors},
  };
  for (auto &test : tests) {
    test.second();
    std::printf("%s: ok\n", test.first);
  }
}
