// Code of asmjit in program packs: a runtime to use instead of `asmjit::JitRuntime`.
//
//   palimpsest::AsmjitRuntime runtime(packs);
//   asmjit::CodeHolder code;
//   code.init(runtime.environment());
//   …
//   int (*function)(int);
//   if (runtime.add(&function, &code) != asmjit::kErrorOk)
//     …
//   runtime.release(function);
//
// Needs asmjit as it was in 2022 (tried: Debian 12's 0.0~git20221210), C++14, and `-lpalimpsest`. Compiles with
// `-fno-rtti` and `-fno-exceptions`.

#ifndef PALIMPSEST_ASMJIT_H
#define PALIMPSEST_ASMJIT_H

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

#include <asmjit/core.h>

#include "palimpsest.h"

namespace palimpsest {

// Puts code into packs. Sections that run go to executable memory that no thread can write through, read-only
// sections near them, and the others to writable memory near both. What is added is freed by `release`, or with the
// runtime; its bytes stay until no pinned thread (`palimpsest_pin`) and no forked child can run them.
//
// `packs` stays open as long as the runtime. Any number of threads may add and release at once. When palimpsest itself
// has refused (`kErrorOutOfMemory`, `kErrorInvalidArgument`, `kErrorInvalidState`), `palimpsest_error_message()` names
// the values, and what to change.
class AsmjitRuntime : public asmjit::Target {
public:
  explicit AsmjitRuntime(palimpsest_packs packs) noexcept : packs(packs) {
    _environment = asmjit::Environment::host();
    _environment.setObjectFormat(asmjit::ObjectFormat::kJIT);
  }

  ~AsmjitRuntime() noexcept override { reset(); }

  // Places the code, relocates it, and lets it run: `function` gets the address of its first byte, or null. Observers
  // of the packs know it as `name`; global labels with names begin functions of their own.
  //
  // A `CodeHolder` with several sections can be added once, and not after `flatten`, since asmjit resolves the
  // distances between them for good: `kErrorInvalidState`. `kErrorInvalidLabel`: a label that the code uses was never
  // bound.
  template <typename Function>
  asmjit::Error add(Function *function, asmjit::CodeHolder *code, const char *name = nullptr) noexcept {
    static_assert(sizeof(Function) == sizeof(size_t), "the result is a pointer");
    size_t entry = 0;
    auto error = place(entry, *code, name);
    std::memcpy(static_cast<void *>(function), &entry, sizeof entry);
    return error;
  }

  // Releases what `add` gave. `kErrorInvalidArgument` if that was another runtime's, or is released already.
  // `kErrorInvalidState` if palimpsest has refused: what is still there then stays the runtime's.
  template <typename Function> asmjit::Error release(Function function) noexcept {
    static_assert(sizeof(Function) == sizeof(size_t), "the argument is a pointer");
    size_t entry = 0;
    std::memcpy(&entry, &function, sizeof entry);
    // Held over both, so that no other thread is given the same address in between.
    std::lock_guard<std::mutex> guard(lock);
    auto found = added.find(entry);
    if (found == added.end())
      return asmjit::kErrorInvalidArgument;
    auto result = palimpsest_alloc_release(packs, &entry, 1, nullptr);
    // The last two: it is gone without this runtime, or the packs are closed.
    if (result == PALIMPSEST_OK || result == PALIMPSEST_NOT_FOUND || result == PALIMPSEST_STALE)
      added.erase(found);
    return answer(result);
  }

  // Releases all that was added.
  void reset() noexcept {
    std::lock_guard<std::mutex> guard(lock);
    for (auto entry : added)
      palimpsest_alloc_release(packs, &entry, 1, nullptr);
    added.clear();
  }

private:
  // Parts of an allocation, as indices.
  enum Part { Code, ReadOnly, ReadWrite, Parts };

  // An allocation that is given back unless it is finalized.
  struct Draft {
    Draft() = default;
    Draft(const Draft &) = delete;
    Draft &operator=(const Draft &) = delete;

    ~Draft() {
      if (alloc.handle != 0)
        palimpsest_alloc_drop(alloc);
    }

    palimpsest_alloc alloc = {0};
    palimpsest_alloc_place places[Parts] = {};
  };

  asmjit::Error place(size_t &entry, asmjit::CodeHolder &code, const char *name) noexcept {
    size_t sections = 0;
    auto is_laid_out = false;
    for (auto *section : code.sections()) {
      sections += section->realSize() != 0;
      is_laid_out |= section->offset() != 0;
    }
    if (sections > 1 && is_laid_out)
      return asmjit::kErrorInvalidState;
    Draft draft;
    if (auto error = allocate(draft, code)) {
      // It may be added to other packs.
      for (auto *section : code.sections())
        section->setOffset(0);
      return error;
    }
    // asmjit counts offsets of sections without a sign: from the lowest part.
    auto base = SIZE_MAX;
    for (auto &place : draft.places)
      if (place.len != 0)
        base = std::min(base, place.address);
    for (auto *section : code.sections())
      if (section->realSize() != 0)
        section->setOffset(place_of(draft, code, *section).address - base + section->offset());
    if (auto error = code.resolveUnresolvedLinks())
      return error;
    if (code.hasUnresolvedLinks())
      return asmjit::kErrorInvalidLabel;
    if (auto error = code.relocateToBase(base))
      return error;
    size_t code_len = 0;
    for (auto *section : code.sections()) {
      // The table of addresses has become as short as it can be.
      auto len = static_cast<size_t>(section->realSize());
      if (len == 0)
        continue;
      auto &place = place_of(draft, code, *section);
      auto begin = base + static_cast<size_t>(section->offset()) - place.address;
      auto *working = static_cast<char *>(place.working) + begin;
      if (section->bufferSize() != 0)
        std::memcpy(working, section->data(), section->bufferSize());
      // Data starts as zeros, but code as traps.
      std::memset(working + section->bufferSize(), 0, len - section->bufferSize());
      if (part_of(code, *section) == Code)
        code_len = std::max(code_len, begin + len);
    }
    if (code_len < draft.places[Code].len)
      if (auto error = answer(palimpsest_alloc_shrink(draft.alloc, PALIMPSEST_CODE, code_len)))
        return error;
    if (name != nullptr)
      if (auto error = answer(palimpsest_alloc_set_name(draft.alloc, name)))
        return error;
    if (auto error = tell_functions(draft, code, name, base, code_len))
      return error;

    auto start = draft.places[Code].address;
    if (!remember(start))
      return asmjit::kErrorOutOfMemory;
    auto result = palimpsest_alloc_finalize(packs, &draft.alloc, 1);
    if (result != PALIMPSEST_INVALID && result != PALIMPSEST_STALE)
      draft.alloc = {0};
    if (result != PALIMPSEST_OK) {
      forget(start);
      return answer(result);
    }
    entry = start;
    return asmjit::kErrorOk;
  }

  // Takes places for all sections, whose offsets are then those in their parts.
  asmjit::Error allocate(Draft &draft, asmjit::CodeHolder &code) noexcept {
    palimpsest_alloc_request request = {};
    request.size = sizeof request;
    palimpsest_alloc_part *parts[Parts] = {&request.code, &request.read_only, &request.read_write};
    for (auto *part : parts)
      part->align = 1;
    // By order, in which the table of addresses is the last, so that it can be cut off.
    for (auto *section : code.sectionsByOrder()) {
      auto len = section->realSize();
      if (len == 0)
        continue;
      auto &part = *parts[part_of(code, *section)];
      auto align = std::max<size_t>(section->alignment(), 1);
      auto begin = (part.len + align - 1) & ~(align - 1);
      if (begin < part.len || len > SIZE_MAX - begin)
        return asmjit::kErrorTooLarge;
      section->setOffset(begin);
      part.len = begin + static_cast<size_t>(len);
      part.align = std::max(part.align, align);
    }
    // What is called is the first byte of `.text`.
    if (code.textSection()->realSize() == 0)
      return asmjit::kErrorNoCodeGenerated;
    if (code.textSection()->offset() != 0)
      return asmjit::kErrorInvalidSection;
    palimpsest_alloc_places places = {};
    places.size = sizeof places;
    if (auto error = answer(palimpsest_alloc_allocate(packs, &request, &draft.alloc, &places)))
      return error;
    draft.places[Code] = places.code;
    draft.places[ReadOnly] = places.read_only;
    draft.places[ReadWrite] = places.read_write;
    return asmjit::kErrorOk;
  }

  // Tells observers of the packs where named labels begin functions.
  asmjit::Error tell_functions(Draft &draft, asmjit::CodeHolder &code, const char *name, size_t base,
                               size_t code_len) noexcept {
#ifdef __cpp_exceptions
    try {
#endif
      std::vector<palimpsest_function> functions;
      for (auto *label : code.labelEntries()) {
        auto is_function = label->type() == asmjit::LabelType::kGlobal && label->hasName() && label->isBound();
        if (is_function && part_of(code, *label->section()) == Code) {
          auto address = base + static_cast<size_t>(label->section()->offset() + label->offset());
          functions.push_back({label->name(), address - draft.places[Code].address, 0});
        }
      }
      std::sort(functions.begin(), functions.end(), [](auto &one, auto &other) { return one.offset < other.offset; });
      // Each ends where the next one begins.
      auto end = code_len;
      for (auto function = functions.rbegin(); function != functions.rend(); ++function) {
        function->len = end - function->offset;
        end = function->offset;
      }
      if (!functions.empty() && end != 0)
        functions.push_back({name, 0, end});
      if (functions.empty())
        return asmjit::kErrorOk;
      return answer(palimpsest_alloc_set_functions(draft.alloc, functions.data(), functions.size()));
#ifdef __cpp_exceptions
    } catch (const std::bad_alloc &) {
      return asmjit::kErrorOutOfMemory;
    }
#endif
  }

  bool remember(size_t entry) noexcept {
    std::lock_guard<std::mutex> guard(lock);
#ifdef __cpp_exceptions
    try {
      added.insert(entry);
    } catch (const std::bad_alloc &) {
      return false;
    }
#else
    added.insert(entry);
#endif
    return true;
  }

  void forget(size_t entry) noexcept {
    std::lock_guard<std::mutex> guard(lock);
    added.erase(entry);
  }

  // The table of addresses is beside the calls that go through it.
  static Part part_of(const asmjit::CodeHolder &code, const asmjit::Section &section) noexcept {
    if (&section == code.addressTableSection() || section.hasFlag(asmjit::SectionFlags::kExecutable))
      return Code;
    return section.hasFlag(asmjit::SectionFlags::kReadOnly) ? ReadOnly : ReadWrite;
  }

  static const palimpsest_alloc_place &place_of(const Draft &draft, const asmjit::CodeHolder &code,
                                                const asmjit::Section &section) noexcept {
    return draft.places[part_of(code, section)];
  }

  static asmjit::Error answer(palimpsest_result result) noexcept {
    switch (result) {
    case PALIMPSEST_OK:
      return asmjit::kErrorOk;
    case PALIMPSEST_NO_ROOM:
      return asmjit::kErrorOutOfMemory;
    case PALIMPSEST_INVALID:
      return asmjit::kErrorInvalidArgument;
    default:
      return asmjit::kErrorInvalidState;
    }
  }

  palimpsest_packs packs;
  std::mutex lock;
  // The first addresses of what was added and is not released.
  std::unordered_set<size_t> added;
};

} // namespace palimpsest

#endif // PALIMPSEST_ASMJIT_H
