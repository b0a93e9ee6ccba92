// Packs beside LLVM's own memory manager, in one run: functions that are linked one by one, called in turn, and
// removed. See `measure.h` for arguments.

#include "llvm/AsmParser/Parser.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"

#include "../../measure.h"
#include "../support.h"
#include "palimpsest/orc.h"

using namespace llvm;
using namespace llvm::orc;

namespace {

// The digits of a function's name: objects differ only in these bytes, so one compilation makes them all.
constexpr const char *name_pattern = "f%07zu";

using Called = int64_t(int64_t);

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

shared::CWrapperFunctionResult do_nothing(const char *data, size_t size) {
  return shared::WrapperFunction<shared::SPSError()>::handle(data, size, [] { return Error::success(); }).release();
}

// Gives each object an action for when it is removed. Before LLVM 19, `InProcessMemoryManager` leaves objects without
// one mapped (pull request 81943 of llvm-project).
class WithAction : public ObjectLinkingLayer::Plugin {
public:
  void modifyPassConfig(MaterializationResponsibility &, jitlink::LinkGraph &,
                        jitlink::PassConfiguration &passes) override {
    passes.PrePrunePasses.push_back([](jitlink::LinkGraph &graph) {
      graph.allocActions().push_back({{}, shared::WrapperFunctionCall(ExecutorAddr::fromPtr(&do_nothing), {})});
      return Error::success();
    });
  }

  Error notifyFailed(MaterializationResponsibility &) override { return Error::success(); }
  Error notifyRemovingResources(ResourceKey) override { return Error::success(); }
  void notifyTransferringResources(ResourceKey, ResourceKey) override {}
};

enum class Removal { Plain, WithAction };

// Links `count` functions, calls them in turn and frees them one by one.
measure::Figures link_and_call(jitlink::JITLinkMemoryManager &memory, const std::string &object, size_t count,
                               Removal removal = Removal::Plain) {
  auto jit = make_jit(memory, false);
  if (removal == Removal::WithAction)
    static_cast<ObjectLinkingLayer &>(jit->getObjLinkingLayer()).addPlugin(std::make_unique<WithAction>());
  std::string failure;
  jit->getExecutionSession().setErrorReporter([&](Error error) { failure = toString(std::move(error)); });
  std::vector<ResourceTrackerSP> trackers;
  std::vector<Called *> functions;
  std::vector<std::unique_ptr<MemoryBuffer>> objects;
  for (size_t i = 0; i < count; ++i)
    objects.push_back(MemoryBuffer::getMemBufferCopy(renamed(object, i), name_of(i)));
  auto load = [&](size_t i) {
    trackers.push_back(jit->getMainJITDylib().createResourceTracker());
    must(jit->addObjectFile(trackers.back(), std::move(objects[i])));
    auto symbol = jit->lookup(name_of(i));
    if (!symbol) {
      std::fprintf(stderr, "function %zu of %zu: %s\n", i, count, failure.c_str());
      _exit(1);
    }
    functions.push_back(reinterpret_cast<Called *>(static_cast<uintptr_t>(symbol->getAddress())));
  };
  return measure::load_and_call(
      count, load, [&](size_t i, int64_t x) { return functions[i](x); },
      [&](size_t i) { must(trackers[i]->remove()); });
}

} // namespace

int main(int argc, char **argv) {
  prepare_llvm();
  auto object = compile_object();
  auto in_packs = [&](size_t count) {
    palimpsest_packs_options options = {};
    options.size = sizeof options;
    palimpsest_packs packs;
    must(palimpsest_packs_open(&options, &packs));
    palimpsest::orc::PackMemoryManager memory(packs);
    return link_and_call(memory, object, count);
  };
  auto in_pages = [&](Removal removal) {
    return [&object, removal](size_t count) {
      auto memory = must(jitlink::InProcessMemoryManager::Create());
      return link_and_call(*memory, object, count, removal);
    };
  };
  std::vector<measure::Way> ways = {
      {"packs", in_packs}, {"unmapping", in_pages(Removal::WithAction)}, {"in_process", in_pages(Removal::Plain)}};
  return measure::run("llvm-orc", ways, argc, argv);
}
