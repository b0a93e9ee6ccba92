// Owners in C++ for what palimpsest.h hands out: each is given back when its owner goes, whatever an exception skips.
#include <palimpsest.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

// ANCHOR: owners
struct Error : std::runtime_error {
    palimpsest_result result;
    explicit Error(palimpsest_result result) : std::runtime_error(palimpsest_error_message()), result(result) {}
};

inline void check(palimpsest_result result) {
    if (result != PALIMPSEST_OK) {
        throw Error(result);
    }
}

// Owns a handle, of which 0 names nothing.
template <typename Handle, palimpsest_result (*Release)(Handle)>
class Owner {
public:
    Owner() = default;
    explicit Owner(Handle handle) : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
    Owner &operator=(Owner &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owner() {
        if (handle_.handle != 0) {
            Release(handle_);
        }
    }
    Handle get() const { return handle_; }

private:
    Handle handle_{};
};

using Packs = Owner<palimpsest_packs, palimpsest_packs_close>;
using Program = Owner<palimpsest_program, palimpsest_program_release>;

inline Packs open_packs() {
    palimpsest_packs packs{};
    check(palimpsest_packs_open(nullptr, &packs));
    return Packs(packs);
}

inline Program load(const Packs &packs, const std::string &name, const std::vector<unsigned char> &code) {
    palimpsest_program program{};
    check(palimpsest_load(packs.get(), name.c_str(), code.data(), code.size(), 16, &program));
    return Program(program);
}

// Calls a program, whose type the caller knows.
template <typename Function>
Function *entry_of(const Program &program) {
    const void *entry = nullptr;
    check(palimpsest_program_entry(program.get(), &entry, nullptr));
    Function *function;
    std::memcpy(&function, &entry, sizeof function);
    return function;
}

// Keeps a static key on as long as it lives.
class Enabled {
public:
    explicit Enabled(palimpsest_key &key) : key_(key) { check(palimpsest_key_enable(&key_)); }
    Enabled(const Enabled &) = delete;
    Enabled &operator=(const Enabled &) = delete;
    ~Enabled() { palimpsest_key_disable(&key_); }

private:
    palimpsest_key &key_;
};

// An allocator for containers, whose memory forks in constant time.
template <typename T>
struct InArena {
    using value_type = T;
    InArena() = default;
    template <typename U>
    InArena(const InArena<U> &) {}
    T *allocate(std::size_t count) {
        if (count > SIZE_MAX / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        void *block = palimpsest_arena_aligned_alloc(alignof(T), count * sizeof(T));
        if (block == nullptr) {
            throw std::bad_alloc();
        }
        return static_cast<T *>(block);
    }
    void deallocate(T *block, std::size_t) { palimpsest_arena_free(block); }
    bool operator==(const InArena &) const { return true; }
    bool operator!=(const InArena &) const { return false; }
};
// ANCHOR_END: owners

PALIMPSEST_KEY(verbose, "owners.verbose", 0);

static int answer(const Program &program) {
    int found = entry_of<int()>(program)();
    if (palimpsest_branch_unlikely(verbose)) {
        std::printf("the answer is %d\n", found);
    }
    return found;
}

#if defined(__x86_64__)
static const std::vector<unsigned char> code{0xb8, 7, 0, 0, 0, 0xc3};
#else
static const std::vector<unsigned char> code{0xe0, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
#endif

// How many programs there are: what was released counts until it is reclaimed.
static std::size_t programs(const Packs &packs) {
    check(palimpsest_packs_reclaim(packs.get(), nullptr));
    palimpsest_packs_stats stats{};
    stats.size = sizeof stats;
    check(palimpsest_packs_get_stats(packs.get(), &stats));
    return stats.programs;
}

// A function that fails with two programs loaded leaves none behind.
static bool nothing_is_left(const Packs &packs) {
    try {
        Program first = load(packs, "first", code), second = load(packs, "second", code);
        second = std::move(first);
        Enabled loudly(verbose);
        if (answer(second) == 7 && programs(packs) == 2) {
            load(packs, "no code", {});
        }
        return false;
    } catch (const Error &error) {
        std::printf("refused: %s\n", error.what());
        return error.result == PALIMPSEST_INVALID && programs(packs) == 0 && !palimpsest_branch_unlikely(verbose);
    }
}

static bool a_child_has_the_vector() {
    std::vector<int, InArena<int>> numbers(1 << 20, 5);
    pid_t child = fork();
    if (child == 0) {
        _exit(numbers.at(77777) == 5 && numbers.size() == 1 << 20 ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0;
}

int main() {
    Packs packs = open_packs();
    return nothing_is_left(packs) && a_child_has_the_vector() ? 0 : 1;
}
