// What the tests, the example and the measurement share: an LLJIT whose objects go to a memory manager of choice.

#ifndef SUPPORT_H
#define SUPPORT_H

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "llvm/ExecutionEngine/JITLink/EHFrameSupport.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/ExecutionEngine/Orc/DebugObjectManagerPlugin.h"
#include "llvm/ExecutionEngine/Orc/EPCDebugObjectRegistrar.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/Support/TargetSelect.h"

#include "../mappings.h"
#include "palimpsest.h"

#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                             \
      std::abort();                                                                                                    \
    }                                                                                                                  \
  } while (0)

// Ends the program if `value` is an error, and says which.
template <typename T> T must(llvm::Expected<T> value) {
  if (value)
    return std::move(*value);
  std::fprintf(stderr, "%s\n", llvm::toString(value.takeError()).c_str());
  std::abort();
}

inline void must(llvm::Error error) {
  if (!error)
    return;
  std::fprintf(stderr, "%s\n", llvm::toString(std::move(error)).c_str());
  std::abort();
}

// Ends the program if palimpsest refused, and says why.
inline void must(palimpsest_result result) {
  if (result == PALIMPSEST_OK)
    return;
  std::fprintf(stderr, "%s\n", palimpsest_error_message());
  std::abort();
}

inline void prepare_llvm() {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::InitializeNativeTargetAsmParser();
}

// `with_unwinding` registers unwind tables, so that exceptions pass through compiled functions.
inline std::unique_ptr<llvm::orc::LLJIT> make_jit(llvm::jitlink::JITLinkMemoryManager &memory,
                                                  bool with_unwinding = true) {
  auto machine = must(llvm::orc::JITTargetMachineBuilder::detectHost());
  machine.setRelocationModel(llvm::Reloc::PIC_).setCodeModel(llvm::CodeModel::Small);
  // ANCHOR: builder
  llvm::orc::LLJITBuilder builder;
  builder.setJITTargetMachineBuilder(std::move(machine))
      // A target machine for each compilation: the default has a single one, for one thread.
      .setCompileFunctionCreator([](llvm::orc::JITTargetMachineBuilder machine) {
        return std::make_unique<llvm::orc::ConcurrentIRCompiler>(std::move(machine));
      })
      .setObjectLinkingLayerCreator([&memory, with_unwinding](auto &session, const llvm::Triple &) {
        auto layer = std::make_unique<llvm::orc::ObjectLinkingLayer>(session, memory);
        if (with_unwinding)
          layer->addPlugin(std::make_unique<llvm::orc::EHFrameRegistrationPlugin>(
              session, std::make_unique<llvm::jitlink::InProcessEHFrameRegistrar>()));
        return layer;
      });
  auto jit = must(builder.create());
  // ANCHOR_END: builder
  auto prefix = jit->getDataLayout().getGlobalPrefix();
  jit->getMainJITDylib().addGenerator(
      must(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(prefix)));
  return jit;
}

// ANCHOR: gdb
// Hands gdb each object with debug information when it is linked, and does not take it back.
inline void debug_with_gdb(llvm::orc::LLJIT &jit) {
  auto &session = jit.getExecutionSession();
  auto &layer = static_cast<llvm::orc::ObjectLinkingLayer &>(jit.getObjLinkingLayer());
  auto registrar = must(llvm::orc::createJITLoaderGDBRegistrar(session));
  layer.addPlugin(std::make_unique<llvm::orc::DebugObjectManagerPlugin>(session, std::move(registrar)));
}
// ANCHOR_END: gdb

// Returns the function `name`, which is compiled and linked now.
template <typename Function> Function *find(llvm::orc::LLJIT &jit, const std::string &name) {
  return reinterpret_cast<Function *>(static_cast<uintptr_t>(must(jit.lookup(name)).getAddress()));
}

#endif // SUPPORT_H
