// A memory manager for JITLink, which puts the code of LLVM's ORC into program packs.
//
//   palimpsest::orc::PackMemoryManager Memory(Packs);
//   LLJITBuilder().setObjectLinkingLayerCreator([&](ExecutionSession &S, const Triple &) {
//     return std::make_unique<ObjectLinkingLayer>(S, Memory);
//   })
//
// Needs LLVM 14 to 19 (tried: 14), C++14, and `-lpalimpsest`. Compiles with `-fno-rtti` and `-fno-exceptions`.

#ifndef PALIMPSEST_ORC_H
#define PALIMPSEST_ORC_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llvm/Config/llvm-config.h"
#include "llvm/ExecutionEngine/JITLink/JITLink.h"
#include "llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h"
#include "llvm/ExecutionEngine/Orc/Shared/AllocationActions.h"
#include "llvm/Support/Error.h"

#include "palimpsest.h"
#include "palimpsest/orc_eh_frame.h"

// LLVM 20 has changed the type of symbols' names.
static_assert(LLVM_VERSION_MAJOR >= 14 && LLVM_VERSION_MAJOR <= 19, "palimpsest/orc.h needs LLVM 14 to 19");

namespace palimpsest {
namespace orc {

// Puts what JITLink links into packs: code into executable memory that no thread can write through, read-only and
// writable data near it. Each object that is added is an allocation of its own, and freed with its `ResourceTracker`:
// its bytes stay until no pinned thread (`palimpsest_pin`) and no forked child can run them.
//
// Observers of the packs get names and unwind tables. So packs with `PALIMPSEST_UNWIND` register the tables with the
// process's unwinder; leave out LLVM's `EHFrameRegistrationPlugin` then, which would register them once more.
//
// Unwind tables of a kind that observers cannot be given are an error, which names the object: an exception through its
// code would end the process if packs register tables. With `on_no_tables` such an object is linked without telling
// observers, and that is called with the same error, from any thread that links.
//
// `packs` stays open as long as the manager and all that it has linked. Any number of threads may link at once.
class PackMemoryManager : public llvm::jitlink::JITLinkMemoryManager {
public:
  using OnNoTables = std::function<void(llvm::Error)>;

  explicit PackMemoryManager(palimpsest_packs packs, OnNoTables on_no_tables = nullptr)
      : packs(packs), on_no_tables(std::move(on_no_tables)) {}

  void allocate(const llvm::jitlink::JITLinkDylib *, llvm::jitlink::LinkGraph &graph,
                OnAllocatedFunction on_allocated) override {
    auto linking = std::make_unique<Linking>(packs, graph, on_no_tables);
    if (auto error = linking->place())
      on_allocated(std::move(error));
    else
      on_allocated(AllocResult(std::move(linking)));
  }

  void deallocate(std::vector<FinalizedAlloc> allocs, OnDeallocatedFunction on_deallocated) override {
    llvm::Error error = llvm::Error::success();
    while (!allocs.empty()) {
      std::unique_ptr<Linked> linked(address_to_linked(allocs.back().release()));
      allocs.pop_back();
      // Actions such as taking back unwind tables come first: they read what is released then.
      error = llvm::joinErrors(std::move(error), llvm::orc::shared::runDeallocActions(linked->actions));
      error = llvm::joinErrors(std::move(error), release(packs, linked->address));
    }
    on_deallocated(std::move(error));
  }

  using JITLinkMemoryManager::allocate;
  using JITLinkMemoryManager::deallocate;

private:
  // An object that is linked and in place.
  struct Linked {
    // The first address of one of its parts; 0 if it has none.
    size_t address;
    std::vector<llvm::orc::shared::WrapperFunctionCall> actions;
  };

  // Parts of an allocation, as indices.
  enum Part { Code, ReadOnly, ReadWrite, Parts };

  using Segment = llvm::jitlink::BasicLayout::Segment;

  // Segments of one lifetime, and the places that they get.
  struct Group {
    std::array<std::vector<Segment *>, Parts> segments;
    palimpsest_alloc alloc = {0};
    size_t address = 0;
    size_t code_len = 0;
  };

  // An object that is being linked.
  class Linking : public InFlightAlloc {
  public:
    Linking(palimpsest_packs packs, llvm::jitlink::LinkGraph &graph, const OnNoTables &on_no_tables)
        : packs(packs), graph(graph), on_no_tables(on_no_tables), layout(graph) {}

    Linking(const Linking &) = delete;
    Linking &operator=(const Linking &) = delete;

    ~Linking() override { llvm::consumeError(drop()); }

    // Takes places for all segments, and tells JITLink where they are.
    llvm::Error place() {
      for (auto &entry : layout.segments()) {
        auto part = part_of(entry.first);
        if (part == Parts)
          return failure("`" + graph.getName() + "` has a segment that is writable and executable; packs have none");
        group_of(entry.first).segments[part].push_back(&entry.second);
      }
      for (auto *group : {&standard, &finalize_only})
        if (auto error = place(*group))
          return error;
      if (auto error = layout.apply())
        return error;
      for (auto *group : {&standard, &finalize_only})
        if (auto error = tell_functions(*group))
          return error;
      return llvm::Error::success();
    }

    void abandon(OnAbandonedFunction on_abandoned) override { on_abandoned(drop()); }

    void finalize(OnFinalizedFunction on_finalized) override {
      std::array<palimpsest_alloc, 2> allocs;
      size_t count = 0;
      for (auto *group : {&standard, &finalize_only})
        if (group->alloc.handle != 0)
          allocs[count++] = group->alloc;
      if (auto error = tell_unwinding())
        return on_finalized(llvm::joinErrors(std::move(error), drop()));
      if (count != 0) {
        auto result = palimpsest_alloc_finalize(packs, allocs.data(), count);
        if (result == PALIMPSEST_INVALID || result == PALIMPSEST_STALE) {
          auto error = failure();
          return on_finalized(llvm::joinErrors(std::move(error), drop()));
        }
        standard.alloc = finalize_only.alloc = {0};
        if (result != PALIMPSEST_OK)
          return on_finalized(failure());
      }
      auto actions = llvm::orc::shared::runFinalizeActions(actions_of(graph));
      // Releases what only the actions needed, even if they have failed.
      auto error = release(packs, finalize_only.address);
      if (!actions) {
        error = llvm::joinErrors(actions.takeError(), std::move(error));
        return on_finalized(llvm::joinErrors(std::move(error), release(packs, standard.address)));
      }
      if (error) {
        error = llvm::joinErrors(std::move(error), llvm::orc::shared::runDeallocActions(*actions));
        return on_finalized(llvm::joinErrors(std::move(error), release(packs, standard.address)));
      }
      auto *linked = new Linked{standard.address, std::move(*actions)};
      on_finalized(FinalizedAlloc(linked_to_address(linked)));
    }

  private:
    llvm::Error place(Group &group) {
      palimpsest_alloc_request request = {};
      request.size = sizeof request;
      palimpsest_alloc_part *parts[] = {&request.code, &request.read_only, &request.read_write};
      std::vector<size_t> offsets;
      for (int part = Code; part != Parts; ++part) {
        parts[part]->align = 1;
        for (auto *segment : group.segments[part]) {
          auto align = static_cast<size_t>(segment->Alignment.value());
          auto begin = (parts[part]->len + align - 1) & ~(align - 1);
          auto end = begin;
          // An object may claim any size for what it has no bytes of.
          if (begin < parts[part]->len || !add(end, segment->ContentSize) || !add(end, segment->ZeroFillSize))
            return failure("the segments of `" + graph.getName() + "` are longer than the address space");
          offsets.push_back(begin);
          parts[part]->len = end;
          parts[part]->align = std::max(parts[part]->align, align);
        }
      }
      if (request.code.len == 0 && request.read_only.len == 0 && request.read_write.len == 0)
        return llvm::Error::success();

      palimpsest_alloc_places places = {};
      places.size = sizeof places;
      if (palimpsest_alloc_allocate(packs, &request, &group.alloc, &places) != PALIMPSEST_OK)
        return failure();
      if (palimpsest_alloc_set_name(group.alloc, name().c_str()) != PALIMPSEST_OK)
        return failure();

      const palimpsest_alloc_place *placed[] = {&places.code, &places.read_only, &places.read_write};
      auto offset = offsets.begin();
      for (int part = Code; part != Parts; ++part) {
        if (group.address == 0)
          group.address = placed[part]->address;
        if (part == Code)
          group.code_len = placed[part]->len;
        for (auto *segment : group.segments[part]) {
          auto *working = static_cast<char *>(placed[part]->working) + *offset;
          segment->Addr = decltype(segment->Addr)(placed[part]->address + *offset);
          segment->WorkingMem = working;
          // Data starts as zeros, but code as traps.
          if (part == Code)
            std::memset(working + segment->ContentSize, 0, static_cast<size_t>(segment->ZeroFillSize));
          ++offset;
        }
      }
      return llvm::Error::success();
    }

    // Adds to a length, unless the sum would wrap.
    static bool add(size_t &len, uint64_t more) {
      if (more > SIZE_MAX - len)
        return false;
      len += static_cast<size_t>(more);
      return true;
    }

    // Gives back what is not finalized.
    llvm::Error drop() {
      llvm::Error error = llvm::Error::success();
      for (auto *group : {&standard, &finalize_only}) {
        if (group->alloc.handle != 0 && palimpsest_alloc_drop(group->alloc) != PALIMPSEST_OK)
          error = llvm::joinErrors(std::move(error), failure());
        group->alloc = {0};
      }
      return error;
    }

    // Tells profilers which functions an object has, and what its stubs lead to.
    llvm::Error tell_functions(const Group &group) {
      if (group.code_len == 0)
        return llvm::Error::success();
      std::vector<std::pair<const llvm::jitlink::Symbol *, std::string>> found;
      for (auto *symbol : graph.defined_symbols()) {
        if (!symbol->isCallable() || address_of(*symbol) - group.address >= group.code_len)
          continue;
        auto name = symbol->hasName() ? std::string(llvm::StringRef(symbol->getName())) : stub(*symbol);
        found.emplace_back(symbol, std::move(name));
      }
      std::vector<palimpsest_function> functions;
      for (auto &one : found) {
        auto offset = address_of(*one.first) - group.address;
        auto block = one.first->getBlock().getSize();
        auto begin = one.first->getOffset();
        // What assembly says nothing of ends with its block, and so does what an object claims to be longer.
        uint64_t len = begin < block ? block - begin : 0;
        if (one.first->getSize() != 0)
          len = std::min<uint64_t>(len, one.first->getSize());
        functions.push_back({one.second.c_str(), offset, static_cast<size_t>(len)});
      }
      if (palimpsest_alloc_set_functions(group.alloc, functions.data(), functions.size()) != PALIMPSEST_OK)
        return failure();
      return llvm::Error::success();
    }

    // Gives observers the object's unwind tables, which JITLink has linked by now. What describes no code is not told.
    llvm::Error tell_unwinding() {
      if (standard.code_len == 0)
        return llvm::Error::success();
      auto *section = graph.findSectionByName(".eh_frame");
      if (section == nullptr)
        return graph.findSectionByName(".sframe") == nullptr ? llvm::Error::success()
                                                             : no_tables("only `.sframe`, and no `.eh_frame`");
      std::vector<const llvm::jitlink::Block *> blocks(section->blocks().begin(), section->blocks().end());
      std::sort(blocks.begin(), blocks.end(), [](auto *one, auto *other) {
        return one->getAddress().getValue() < other->getAddress().getValue();
      });
      AbsoluteEhFrame frames;
      for (auto *block : blocks) {
        auto address = block->getAddress().getValue();
        auto at = address - blocks.front()->getAddress().getValue();
        if (block->isZeroFill())
          return no_tables("no bytes at " + std::to_string(at) + " of `.eh_frame`");
        if (!frames.append(block->getContent().data(), block->getSize(), address))
          return no_tables("at " + std::to_string(at + frames.unknown_at()) + " of `.eh_frame` a record of a kind that "
                           "is not known");
      }
      if (frames.is_empty())
        return llvm::Error::success();
      auto &table = frames.table();
      if (palimpsest_alloc_set_eh_frame(standard.alloc, table.data(), table.size()) != PALIMPSEST_OK)
        return failure();
      return llvm::Error::success();
    }

    // What observers lack is told, or an error.
    llvm::Error no_tables(const std::string &what) {
      auto error = failure("observers cannot be given the unwind tables of `" + graph.getName() + "`: it has " + what +
                           "; give PackMemoryManager a function `on_no_tables` to link it without");
      if (!on_no_tables)
        return error;
      on_no_tables(std::move(error));
      return llvm::Error::success();
    }

    // Names a stub by the function that it jumps to, through an entry of its table.
    std::string stub(const llvm::jitlink::Symbol &symbol) const {
      const llvm::jitlink::Symbol *target = &symbol;
      for (int step = 0; step != 2 && target->isDefined() && target->getBlock().edges_size() != 0; ++step)
        target = &target->getBlock().edges().begin()->getTarget();
      return (target->hasName() ? std::string(llvm::StringRef(target->getName())) : graph.getName()) + "@plt";
    }

    static size_t address_of(const llvm::jitlink::Symbol &symbol) {
      return static_cast<size_t>(symbol.getAddress().getValue());
    }

    // Names the object for profilers: by its function if it has only one, as lazily compiled objects do.
    std::string name() const {
      std::string only;
      for (auto *symbol : graph.defined_symbols()) {
        if (!symbol->isCallable() || !symbol->hasName())
          continue;
        if (!only.empty())
          return graph.getName();
        only = std::string(llvm::StringRef(symbol->getName()));
      }
      return only.empty() ? graph.getName() : only;
    }

    // How long an allocation lives: LLVM has renamed the function twice, and here the name that it has is taken.
    template <typename Allocation>
    static auto lifetime_of(const Allocation &allocation, int) -> decltype(allocation.getMemLifetime()) {
      return allocation.getMemLifetime();
    }
    template <typename Allocation>
    static auto lifetime_of(const Allocation &allocation, long) -> decltype(allocation.getMemLifetimePolicy()) {
      return allocation.getMemLifetimePolicy();
    }
    template <typename Allocation>
    static auto lifetime_of(const Allocation &allocation, ...) -> decltype(allocation.getMemDeallocPolicy()) {
      return allocation.getMemDeallocPolicy();
    }

    template <typename Allocation> Group &group_of(const Allocation &allocation) {
      auto lifetime = lifetime_of(allocation, 0);
      return lifetime == decltype(lifetime)::Finalize ? finalize_only : standard;
    }

    template <typename Allocation> static Part part_of(const Allocation &allocation) {
#if LLVM_VERSION_MAJOR >= 16
      using llvm::orc::MemProt;
#else
      using llvm::jitlink::MemProt;
#endif
      auto rights = allocation.getMemProt();
      auto is_written = (static_cast<unsigned>(rights) & static_cast<unsigned>(MemProt::Write)) != 0;
      auto is_run = (static_cast<unsigned>(rights) & static_cast<unsigned>(MemProt::Exec)) != 0;
      return is_run ? (is_written ? Parts : Code) : (is_written ? ReadWrite : ReadOnly);
    }

    static llvm::orc::shared::AllocActions &actions_of(llvm::jitlink::LinkGraph &graph) { return graph.allocActions(); }

    palimpsest_packs packs;
    llvm::jitlink::LinkGraph &graph;
    const OnNoTables &on_no_tables;
    llvm::jitlink::BasicLayout layout;
    Group standard;
    Group finalize_only;
  };

  static llvm::Error failure(const std::string &words) {
    return llvm::make_error<llvm::StringError>(words, llvm::inconvertibleErrorCode());
  }

  // The error of this thread's last call.
  static llvm::Error failure() { return failure(palimpsest_error_message()); }

  static llvm::Error release(palimpsest_packs packs, size_t address) {
    if (address != 0 && palimpsest_alloc_release(packs, &address, 1, nullptr) != PALIMPSEST_OK)
      return failure();
    return llvm::Error::success();
  }

  static llvm::orc::ExecutorAddr linked_to_address(Linked *linked) {
    return llvm::orc::ExecutorAddr(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(linked)));
  }

  static Linked *address_to_linked(llvm::orc::ExecutorAddr address) {
    return reinterpret_cast<Linked *>(static_cast<uintptr_t>(address.getValue()));
  }

  palimpsest_packs packs;
  OnNoTables on_no_tables;
};

} // namespace orc
} // namespace palimpsest

#endif // PALIMPSEST_ORC_H
