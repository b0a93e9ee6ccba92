// Packs beside LLVM's own memory manager, in one run: functions that are linked one by one and called in turn.
//
//   orc-bench [--json] [FUNCTIONS…]          1000 and 20 000, if none are named

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "llvm/AsmParser/Parser.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"

#include "../support.h"
#include "palimpsest/orc.h"

using namespace llvm;
using namespace llvm::orc;

namespace {

constexpr int rounds = 5;
constexpr int calls = 400'000;
// The digits of a function's name: objects differ only in these bytes, so one compilation makes them all.
constexpr const char *name_pattern = "f%07zu";

using Called = int64_t(int64_t);

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory of the process that is present, in bytes.
size_t resident() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, present = 0;
  statm >> all >> present;
  return present * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::string name_of(size_t number) {
  char name[32];
  std::snprintf(name, sizeof name, name_pattern, number);
  return name;
}

// An object with one function of some 100 bytes, a constant table and a variable.
std::string compile_object() {
  auto machine = must(JITTargetMachineBuilder::detectHost());
  machine.setRelocationModel(Reloc::PIC_).setCodeModel(CodeModel::Small);
  auto target = must(machine.createTargetMachine());
  LLVMContext context;
  SMDiagnostic problem;
  auto name = name_of(0);
  auto module = parseAssemblyString("@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]\n"
                                    "@calls = internal global i64 0\n"
                                    "define i64 @" + name + "(i64 %x) {\n"
                                    "  %i = and i64 %x, 3\n"
                                    "  %place = getelementptr [4 x i64], [4 x i64]* @table, i64 0, i64 %i\n"
                                    "  %factor = load i64, i64* %place\n"
                                    "  %product = mul i64 %x, %factor\n"
                                    "  %before = load i64, i64* @calls\n"
                                    "  %after = add i64 %before, 1\n"
                                    "  store i64 %after, i64* @calls\n"
                                    "  %sum = add i64 %product, %after\n"
                                    "  ret i64 %sum\n}\n",
                                    problem, context);
  MUST(module);
  module->setDataLayout(target->createDataLayout());
  module->setTargetTriple(target->getTargetTriple().str());
  return must(SimpleCompiler(*target)(*module))->getBuffer().str();
}

std::string renamed(const std::string &object, size_t number) {
  auto from = name_of(0), to = name_of(number);
  auto copy = object;
  for (auto at = copy.find(from); at != std::string::npos; at = copy.find(from, at + from.size()))
    copy.replace(at, from.size(), to);
  return copy;
}

struct Figures {
  double load_us = 0, call_ns = 0, free_us = 0, bytes = 0, mappings = 0;
};


// Links `count` functions, calls them in turn and frees them one by one.
Figures link_and_call(jitlink::JITLinkMemoryManager &memory, const std::string &object, size_t count) {
  Figures figures;
  auto jit = make_jit(memory, false);
  std::string failure;
  jit->getExecutionSession().setErrorReporter([&](Error error) { failure = toString(std::move(error)); });
  std::vector<ResourceTrackerSP> trackers;
  std::vector<Called *> functions;
  std::vector<std::unique_ptr<MemoryBuffer>> objects;
  for (size_t i = 0; i < count; ++i)
    objects.push_back(MemoryBuffer::getMemBufferCopy(renamed(object, i), name_of(i)));
  auto mappings_before = mappings();
  auto resident_before = resident();
  auto start = now();
  for (size_t i = 0; i < count; ++i) {
    trackers.push_back(jit->getMainJITDylib().createResourceTracker());
    must(jit->addObjectFile(trackers.back(), std::move(objects[i])));
    auto symbol = jit->lookup(name_of(i));
    if (!symbol) {
      std::fprintf(stderr, "function %zu of %zu: %s\n", i, count, failure.c_str());
      _exit(1);
    }
    functions.push_back(reinterpret_cast<Called *>(static_cast<uintptr_t>(symbol->getAddress())));
  }
  figures.load_us = (now() - start) * 1e6 / static_cast<double>(count);
  figures.mappings = static_cast<double>(mappings() - mappings_before) / static_cast<double>(count);
  int64_t sum = 0;
  for (auto *function : functions)
    sum += function(1);
  // Measured after all have run: earlier, the written views would count, and the views that run would not.
  figures.bytes = static_cast<double>(resident() - resident_before) / static_cast<double>(count);
  // A fixed stride that meets every function: in order, prefetchers would help both.
  size_t stride = 7919 % count, at = 0;
  start = now();
  for (int i = 0; i < calls; ++i) {
    sum += functions[at](i);
    at += stride;
    at -= at >= count ? count : 0;
  }
  figures.call_ns = (now() - start) * 1e9 / calls;
  MUST(sum != 0);
  start = now();
  for (auto &tracker : trackers)
    must(tracker->remove());
  figures.free_us = (now() - start) * 1e6 / static_cast<double>(count);
  return figures;
}

enum class Manager { Packs, InProcess };

// Measures in a process of its own, so that none finds the heap and the mappings of another. False if it failed.
bool measure(Manager manager, const std::string &object, size_t count, Figures &figures) {
  int ends[2];
  MUST(pipe(ends) == 0);
  auto child = fork();
  MUST(child >= 0);
  if (child == 0) {
    if (manager == Manager::Packs) {
      palimpsest_packs_options options = {};
      options.size = sizeof options;
      palimpsest_packs packs;
      must(palimpsest_packs_open(&options, &packs));
      palimpsest::orc::PackMemoryManager memory(packs);
      figures = link_and_call(memory, object, count);
    } else {
      auto memory = must(jitlink::InProcessMemoryManager::Create());
      figures = link_and_call(*memory, object, count);
    }
    MUST(write(ends[1], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures));
    _exit(0);
  }
  close(ends[1]);
  auto is_measured = read(ends[0], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures);
  close(ends[0]);
  int status = 0;
  MUST(waitpid(child, &status, 0) == child);
  return is_measured;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void tell(bool is_json, size_t count, const char *who, const std::vector<Figures> &all) {
  if (all.empty()) {
    std::printf(is_json ? "{\"id\":\"orc.%zu.%s\",\"failed\":true}\n" : "%6zu  %-12s failed, see above\n", count, who);
    return;
  }
  struct Column {
    const char *name;
    double Figures::*figure;
  };
  const Column columns[] = {{"load_us", &Figures::load_us},
                            {"call_ns", &Figures::call_ns},
                            {"free_us", &Figures::free_us},
                            {"bytes", &Figures::bytes},
                            {"mappings", &Figures::mappings}};
  if (!is_json)
    std::printf("%6zu  %-12s", count, who);
  for (auto &column : columns) {
    std::vector<double> values;
    for (auto &figures : all)
      values.push_back(figures.*column.figure);
    auto most = *std::max_element(values.begin(), values.end());
    auto least = *std::min_element(values.begin(), values.end());
    if (is_json)
      std::printf("{\"id\":\"orc.%zu.%s.%s\",\"median\":%g,\"min\":%g,\"max\":%g}\n", count, column.name, who,
                  median(values), least, most);
    else
      std::printf("  %s %.4g (%.4g-%.4g)", column.name, median(values), least, most);
  }
  if (!is_json)
    std::printf("\n");
}

} // namespace

int main(int argc, char **argv) {
  bool is_json = false;
  std::vector<size_t> counts;
  for (int i = 1; i < argc; ++i) {
    char *end = nullptr;
    if (std::strcmp(argv[i], "--json") == 0)
      is_json = true;
    else if (auto count = std::strtoull(argv[i], &end, 10); *end == 0 && count != 0 && count < 10'000'000)
      counts.push_back(count);
    else {
      std::fprintf(stderr, "`%s` is neither `--json` nor a number of functions below 10000000\n", argv[i]);
      return 2;
    }
  }
  if (counts.empty())
    counts = {1000, 20'000};
  prepare_llvm();
  auto object = compile_object();
  for (auto count : counts) {
    std::vector<Figures> in_packs, in_pages;
    Figures figures;
    bool packs_work = true, pages_work = true;
    for (int round = 0; round < rounds; ++round) {
      if (packs_work && (packs_work = measure(Manager::Packs, object, count, figures)))
        in_packs.push_back(figures);
      if (pages_work && (pages_work = measure(Manager::InProcess, object, count, figures)))
        in_pages.push_back(figures);
    }
    tell(is_json, count, "packs", in_packs);
    tell(is_json, count, "in_process", in_pages);
    std::fflush(stdout);
  }
}
