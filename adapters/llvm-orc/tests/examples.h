// Put before the sources of LLVM's own examples of ORC, which stay as they are: what they link lies in packs. It
// replaces the two linkers' memory, and the default one of `LLJITBuilder`.

#ifndef EXAMPLES_H
#define EXAMPLES_H

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/Orc/RTDyldObjectLinkingLayer.h"

#include "palimpsest/orc.h"

namespace palimpsest_examples {

// Says at the end of the program how much was linked there; an example that linked nothing has failed.
struct Packs {
  Packs() {
    if (palimpsest_packs_open(nullptr, &packs) != PALIMPSEST_OK) {
      std::fprintf(stderr, "%s\n", palimpsest_error_message());
      std::abort();
    }
  }

  ~Packs() {
    palimpsest_packs_stats stats = {};
    stats.size = sizeof stats;
    if (palimpsest_packs_get_stats(packs, &stats) != PALIMPSEST_OK || stats.loads == 0)
      std::abort();
    std::printf("in packs: %llu objects\n", static_cast<unsigned long long>(stats.loads));
  }

  palimpsest_packs packs;
};

inline std::unique_ptr<llvm::jitlink::JITLinkMemoryManager> memory() {
  static Packs opened;
  return std::make_unique<palimpsest::orc::PackMemoryManager>(opened.packs);
}

} // namespace palimpsest_examples

namespace llvm {

namespace jitlink {

struct InPacks {
  static Expected<std::unique_ptr<JITLinkMemoryManager>> Create() { return palimpsest_examples::memory(); }
};

} // namespace jitlink

namespace orc {

struct LayerInPacks : ObjectLinkingLayer {
  template <typename Theirs>
  LayerInPacks(ExecutionSession &session, Theirs) : ObjectLinkingLayer(session, palimpsest_examples::memory()) {}
};

struct BuilderInPacks : LLJITBuilder {
  BuilderInPacks() {
    auto machine = cantFail(JITTargetMachineBuilder::detectHost());
    machine.setRelocationModel(Reloc::PIC_).setCodeModel(CodeModel::Small);
    setJITTargetMachineBuilder(std::move(machine));
    setObjectLinkingLayerCreator([](ExecutionSession &session, const Triple &) {
      return std::make_unique<ObjectLinkingLayer>(session, palimpsest_examples::memory());
    });
  }
};

} // namespace orc
} // namespace llvm

#define InProcessMemoryManager InPacks
#define RTDyldObjectLinkingLayer LayerInPacks
#define LLJITBuilder BuilderInPacks

#endif // EXAMPLES_H
