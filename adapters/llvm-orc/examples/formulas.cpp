// A just-in-time compiler for formulas, with LLVM's ORC and program packs.
//
//   $ formulas
//   > square(x) = x * x
//   > area(r) = 3 * square(r)
//   > area(4)
//   48
//   > square(x) = x * x * x        what was `square` is freed, and those who call it call the new one
//   > area(4)
//   192
//
// Lines come from standard input. A function is an LLVM module of its own, so that it can be freed alone. Functions
// call one another through a table, so that one can be replaced below those who call it.

#include <cctype>
#include <iostream>
#include <map>

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"

#include "../support.h"
#include "palimpsest/orc.h"

using namespace llvm;
using namespace llvm::orc;

namespace {

using Formula = int64_t(int64_t);

// Where callers find a function. The entry's address stays the same when the function is replaced.
struct Entry {
  Formula *formula = nullptr;
  ResourceTrackerSP tracker;
};

struct Mistake {
  std::string words;
};

// sum := product { ("+" | "-") product }     product := factor { "*" factor }
// factor := number | name | name "(" sum ")" | "(" sum ")"
class Parser {
public:
  Parser(const std::string &line, std::map<std::string, Entry> &entries) : line(line), entries(entries) {}

  std::string name() {
    blanks();
    size_t start = at;
    while (at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) || line[at] == '_'))
      ++at;
    if (start == at)
      throw Mistake{"a name is missing at column " + std::to_string(at + 1)};
    return line.substr(start, at - start);
  }

  bool takes(char wanted) {
    blanks();
    if (at == line.size() || line[at] != wanted)
      return false;
    ++at;
    return true;
  }

  void must_take(char wanted) {
    if (!takes(wanted))
      throw Mistake{std::string("`") + wanted + "` is missing at column " + std::to_string(at + 1)};
  }

  void must_end() {
    blanks();
    if (at != line.size())
      throw Mistake{"nobody knows what column " + std::to_string(at + 1) + " means"};
  }

  Value *sum(IRBuilder<> &code, const std::string &parameter, Value *argument) {
    auto *value = product(code, parameter, argument);
    for (;;) {
      if (takes('+'))
        value = code.CreateAdd(value, product(code, parameter, argument));
      else if (takes('-'))
        value = code.CreateSub(value, product(code, parameter, argument));
      else
        return value;
    }
  }

private:
  Value *product(IRBuilder<> &code, const std::string &parameter, Value *argument) {
    auto *value = factor(code, parameter, argument);
    while (takes('*'))
      value = code.CreateMul(value, factor(code, parameter, argument));
    return value;
  }

  Value *factor(IRBuilder<> &code, const std::string &parameter, Value *argument) {
    if (takes('(')) {
      auto *value = sum(code, parameter, argument);
      must_take(')');
      return value;
    }
    blanks();
    if (at < line.size() && std::isdigit(static_cast<unsigned char>(line[at]))) {
      uint64_t number = 0;
      for (; at < line.size() && std::isdigit(static_cast<unsigned char>(line[at])); ++at)
        number = number * 10 + static_cast<uint64_t>(line[at] - '0');
      return code.getInt64(number);
    }
    auto called = name();
    if (!takes('(')) {
      if (argument == nullptr || called != parameter)
        throw Mistake{"there is no number `" + called + "`"};
      return argument;
    }
    auto *passed = sum(code, parameter, argument);
    must_take(')');
    auto entry = entries.find(called);
    if (entry == entries.end())
      throw Mistake{"there is no function `" + called + "`"};
    auto *type = FunctionType::get(code.getInt64Ty(), {code.getInt64Ty()}, false);
    auto *place = code.getInt64(reinterpret_cast<uintptr_t>(&entry->second.formula));
    auto *function = code.CreateLoad(type->getPointerTo(),
                                     code.CreateIntToPtr(place, type->getPointerTo()->getPointerTo()));
    return code.CreateCall(type, function, {passed});
  }

  void blanks() {
    while (at < line.size() && std::isspace(static_cast<unsigned char>(line[at])))
      ++at;
  }

  const std::string &line;
  std::map<std::string, Entry> &entries;
  size_t at = 0;
};

class Session {
public:
  explicit Session(LLJIT &jit) : jit(jit) {}

  // Defines a function (`name(x) = …`), or says what a formula is.
  void read(const std::string &line) {
    if (line.find('=') == std::string::npos) {
      Parser parser(line, entries);
      auto once = compile("formula", parser, "");
      std::cout << once.formula(0) << "\n";
      must(once.tracker->remove());
      return;
    }
    Parser parser(line, entries);
    auto name = parser.name();
    parser.must_take('(');
    auto parameter = parser.name();
    parser.must_take(')');
    parser.must_take('=');
    // The entry comes first, since the function may call itself.
    bool is_new = entries.count(name) == 0;
    entries[name];
    try {
      auto compiled = compile(name, parser, parameter);
      std::swap(entries[name], compiled);
      if (compiled.tracker)
        must(compiled.tracker->remove());
    } catch (const Mistake &) {
      if (is_new)
        entries.erase(name);
      throw;
    }
  }

private:
  Entry compile(const std::string &name, Parser &parser, const std::string &parameter) {
    auto context = std::make_unique<LLVMContext>();
    // Each version has a symbol of its own: both are there until the old one is freed.
    auto symbol = name + "." + std::to_string(++compiled);
    auto module = std::make_unique<Module>(symbol, *context);
    module->setDataLayout(jit.getDataLayout());
    IRBuilder<> code(*context);
    auto *type = FunctionType::get(code.getInt64Ty(), {code.getInt64Ty()}, false);
    auto *function = Function::Create(type, Function::ExternalLinkage, symbol, *module);
    code.SetInsertPoint(BasicBlock::Create(*context, "", function));
    code.CreateRet(parser.sum(code, parameter, parameter.empty() ? nullptr : function->getArg(0)));
    parser.must_end();
    Entry entry;
    entry.tracker = jit.getMainJITDylib().createResourceTracker();
    must(jit.addIRModule(entry.tracker, ThreadSafeModule(std::move(module), std::move(context))));
    entry.formula = find<Formula>(jit, symbol);
    return entry;
  }

  LLJIT &jit;
  // Nodes of a map stay where they are.
  std::map<std::string, Entry> entries;
  size_t compiled = 0;
};

} // namespace

int main() {
  prepare_llvm();
  palimpsest_packs_options options = {};
  options.size = sizeof options;
  palimpsest_packs packs;
  if (palimpsest_packs_open(&options, &packs) != PALIMPSEST_OK) {
    std::cerr << palimpsest_error_message() << "\n";
    return 1;
  }
  {
    // ANCHOR: jit
    palimpsest::orc::PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    // ANCHOR_END: jit
    Session session(*jit);
    for (std::string line; std::getline(std::cin, line);) {
      try {
        session.read(line);
      } catch (const Mistake &mistake) {
        std::cout << mistake.words << "\n";
      }
    }
  }
  palimpsest_packs_close(packs);
}
