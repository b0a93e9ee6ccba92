// gdb and perf see what ORC has put in packs: breakpoints, source lines, frames beyond compiled functions, names.
//
//   orc-tools              runs itself under each tool, and checks what that prints; skips tools that are not there
//   orc-tools gdb|perf …   what runs under a tool

#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"

#include "../support.h"
#include "palimpsest/orc.h"

using namespace llvm;
using namespace llvm::orc;
using palimpsest::orc::PackMemoryManager;

// What compiled functions call, and where gdb stops: names that nothing else has.
extern "C" __attribute__((noinline)) void orc_tools_inside(int64_t value) {
  asm volatile("" : : "r"(value) : "memory");
}

extern "C" __attribute__((noinline)) void orc_tools_removed() { asm volatile("" : : : "memory"); }

namespace {

// Two functions of one object, without frame pointers, and as long on the stack as nobody guesses. `orc_outer` calls
// `orc_inner` in line 5, which calls back in line 2.
const char *const debugged = R"(
declare void @orc_tools_inside(i64)
declare void @llvm.dbg.value(metadata, metadata, metadata)

define i64 @orc_inner(i64 %x) noinline uwtable "frame-pointer"="none" !dbg !10 {
  call void @llvm.dbg.value(metadata i64 %x, metadata !14, metadata !DIExpression()), !dbg !11
  %room = alloca [300 x i8], align 1
  %place = getelementptr [300 x i8], [300 x i8]* %room, i64 0, i64 %x
  store volatile i8 1, i8* %place, !dbg !11
  call void @orc_tools_inside(i64 %x), !dbg !12
  %all = load volatile i8, i8* %place, !dbg !12
  %wide = zext i8 %all to i64
  %sum = add i64 %wide, %x, !dbg !13
  ret i64 %sum, !dbg !13
}

define i64 @orc_outer(i64 %x) noinline uwtable "frame-pointer"="none" !dbg !20 {
  %room = alloca [700 x i8], align 1
  %place = getelementptr [700 x i8], [700 x i8]* %room, i64 0, i64 %x
  store volatile i8 2, i8* %place, !dbg !21
  %inner = call i64 @orc_inner(i64 %x), !dbg !22
  %all = load volatile i8, i8* %place, !dbg !23
  %wide = zext i8 %all to i64
  %sum = add i64 %wide, %inner, !dbg !23
  ret i64 %sum, !dbg !23
}

!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: "test", isOptimized: true,
                             emissionKind: FullDebug)
!1 = !DIFile(filename: "formulas.txt", directory: "/formulas")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = !{i32 7, !"Dwarf Version", i32 4}
!4 = !DISubroutineType(types: !5)
!5 = !{!6, !6}
!6 = !DIBasicType(name: "number", size: 64, encoding: DW_ATE_signed)
!10 = distinct !DISubprogram(name: "orc_inner", file: !1, line: 1, type: !4, scopeLine: 1,
                             spFlags: DISPFlagDefinition, unit: !0, retainedNodes: !15)
!11 = !DILocation(line: 1, scope: !10)
!12 = !DILocation(line: 2, scope: !10)
!13 = !DILocation(line: 3, scope: !10)
!14 = !DILocalVariable(name: "x", arg: 1, scope: !10, file: !1, line: 1, type: !6)
!15 = !{!14}
!20 = distinct !DISubprogram(name: "orc_outer", file: !1, line: 4, type: !4, scopeLine: 4,
                             spFlags: DISPFlagDefinition, unit: !0)
!21 = !DILocation(line: 4, scope: !20)
!22 = !DILocation(line: 5, scope: !20)
!23 = !DILocation(line: 6, scope: !20)
)";

// Two functions of one object that take all the time, with frame pointers, and one call of the program.
const char *const busy = R"(
declare void @orc_tools_inside(i64)

define i64 @orc_busy_leaf(i64 %rounds) noinline "frame-pointer"="all" {
begin:
  br label %loop
loop:
  %left = phi i64 [ %rounds, %begin ], [ %next, %loop ]
  %sum = phi i64 [ 1, %begin ], [ %more, %loop ]
  %product = mul i64 %sum, 6364136223846793005
  %more = add i64 %product, %left
  %next = sub i64 %left, 1
  %is_done = icmp eq i64 %next, 0
  br i1 %is_done, label %end, label %loop
end:
  ret i64 %more
}

define i64 @orc_busy_caller(i64 %rounds) noinline "frame-pointer"="all" {
  %sum = call i64 @orc_busy_leaf(i64 %rounds)
  call void @orc_tools_inside(i64 %sum)
  ret i64 %sum
}
)";

// The same without frame pointers: only unwind tables tell who called.
std::string without_frame_pointers() {
  std::string source = busy;
  const std::string with = "\"frame-pointer\"=\"all\"", without = "uwtable \"frame-pointer\"=\"none\"";
  for (auto at = source.find(with); at != std::string::npos; at = source.find(with, at + without.size()))
    source.replace(at, with.size(), without);
  return source;
}

ResourceTrackerSP add(LLJIT &jit, const std::string &source) {
  auto context = std::make_unique<LLVMContext>();
  SMDiagnostic problem;
  auto module = parseAssemblyString(source, problem, *context);
  if (!module)
    problem.print("orc-tools", errs());
  MUST(module);
  auto tracker = jit.getMainJITDylib().createResourceTracker();
  must(jit.addIRModule(tracker, ThreadSafeModule(std::move(module), std::move(context))));
  return tracker;
}

enum class Memory { Default, Debuggable };

palimpsest_packs open_packs(uint32_t observers, Memory memory = Memory::Default) {
  palimpsest_packs_options options = {};
  options.size = sizeof options;
  options.observers = observers;
  if (memory == Memory::Debuggable) {
    // ANCHOR: debuggable
    // Private memory, which a debugger can write breakpoints to: `/proc/self/mem`, and no second view.
    options.backing = PALIMPSEST_BACKING_PRIVATE;
    options.write_view = PALIMPSEST_WRITE_VIEW_NONE;
    // ANCHOR_END: debuggable
  }
  palimpsest_packs packs;
  must(palimpsest_packs_open(&options, &packs));
  return packs;
}

// What runs under gdb without LLVM's plugin: the packs tell gdb of the functions.
void under_gdb_with_observer() {
  auto packs = open_packs(PALIMPSEST_GDB);
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    auto tracker = add(*jit, busy);
    MUST(find<int64_t(int64_t)>(*jit, "orc_busy_caller")(10) != 0);
    must(tracker->remove());
    must(palimpsest_packs_reclaim(packs, nullptr));
    orc_tools_removed();
  }
  must(palimpsest_packs_close(packs));
}

// What runs under gdb: is called twice.
void under_gdb(Memory kind) {
  auto packs = open_packs(0, kind);
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    debug_with_gdb(*jit);
    add(*jit, debugged);
    auto *outer = find<int64_t(int64_t)>(*jit, "orc_outer");
    MUST(outer(7) == 10);
    MUST(outer(8) == 11);
  }
  must(palimpsest_packs_close(packs));
}

void under_perf(uint32_t observer, const std::string &source) {
  auto packs = open_packs(observer);
  {
    PackMemoryManager memory(packs);
    auto jit = make_jit(memory);
    add(*jit, source);
    auto *caller = find<int64_t(int64_t)>(*jit, "orc_busy_caller");
    std::printf("pid=%d sum=%lld\n", static_cast<int>(getpid()), static_cast<long long>(caller(400'000'000)));
  }
  palimpsest_packs_stats stats = {};
  stats.size = sizeof stats;
  must(palimpsest_packs_get_stats(packs, &stats));
  MUST(stats.observer_errors == 0);
  must(palimpsest_packs_close(packs));
}

struct Ran {
  std::string printed;
  bool succeeded;
};

// Runs a command in `folder`.
Ran run(const std::string &folder, const std::string &command) {
  auto all = "cd '" + folder + "' && HOME='" + folder + "' JITDUMPDIR='" + folder + "' " + command + " 2>&1";
  auto *output = popen(all.c_str(), "r");
  MUST(output != nullptr);
  Ran ran = {};
  char part[4096];
  for (size_t len; (len = fread(part, 1, sizeof part, output)) > 0;)
    ran.printed.append(part, len);
  ran.succeeded = pclose(output) == 0;
  return ran;
}

std::vector<std::string> lines(const std::string &text) {
  std::vector<std::string> found;
  for (size_t start = 0; start < text.size();) {
    auto end = std::min(text.find('\n', start), text.size());
    found.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return found;
}

bool has(const std::string &text, const std::string &wanted) { return text.find(wanted) != std::string::npos; }

// Ends the program unless `text` has all of `wanted`, one behind the other.
void must_have(const std::string &text, const std::vector<std::string> &wanted) {
  size_t at = 0;
  for (auto &words : wanted) {
    auto found = text.find(words, at);
    if (found == std::string::npos) {
      std::fprintf(stderr, "no `%s`, or not in this order, in:\n%s\n", words.c_str(), text.c_str());
      std::abort();
    }
    at = found + words.size();
  }
}

// In packs as they are by default, whose memory nobody can write to, breakpoints are the CPU's.
void gdb_stops_and_unwinds(const std::string &self, const std::string &folder, Memory memory) {
  bool is_writable = memory == Memory::Debuggable;
  auto test = is_writable ? "gdb_stops_and_unwinds(debuggable)" : "gdb_stops_and_unwinds(default)";
  if (!run(folder, "gdb --version").succeeded)
    return void(std::printf("%s: skipped: no gdb\n", test));
  auto kind = std::string(is_writable ? "break" : "hbreak");
  auto ran = run(folder, "gdb -batch -nx -ex 'set debuginfod enabled off' -ex 'set breakpoint pending on'"
                         " -ex '" + kind + " orc_inner' -ex 'break orc_tools_inside'"
                         " -ex run -ex backtrace -ex 'print x'"
                         " -ex continue -ex backtrace -ex 'frame 2' -ex 'info frame' -ex 'delete 2'"
                         " -ex continue -ex 'print x' -ex finish"
                         " --args '" + self + "' gdb " + (is_writable ? "debuggable" : "default"));
  if (has(ran.printed, "ptrace: ") || has(ran.printed, "Could not trace"))
    return void(std::printf("%s: skipped: gdb may not trace\n", test));
  if (!is_writable && has(ran.printed, "Could not insert hardware"))
    return void(std::printf("%s: skipped: no hardware breakpoints here\n", test));
  must_have(ran.printed,
            {// Stops where the name was set before the code existed, and knows line and argument.
             "orc_inner (x=7) at formulas.txt:1", "#0 ", "orc_inner", "#1 ", "orc_outer", "formulas.txt:5",
             "#2 ", "main", "$1 = 7",
             // From a function of the program back through both.
             "orc_tools_inside", "#0 ", "orc_tools_inside", "#1 ", "orc_inner", "formulas.txt:2", "#2 ", "orc_outer",
             "formulas.txt:5", "#3 ", "main",
             // The frame's place, by the object's unwind tables.
             "#2 ", "orc_outer", "Saved registers",
             "orc_inner (x=8)", "$2 = 8"});
  // Back to the caller, for which gdb writes a breakpoint of its own.
  if (is_writable)
    must_have(ran.printed, {"orc_inner (x=8)", "orc_outer () at formulas.txt:", "Value returned is $3 = 9"});
  std::printf("%s: ok\n", test);
}

void gdb_knows_names_by_the_observer(const std::string &self, const std::string &folder) {
  auto test = "gdb_knows_names_by_the_observer";
  if (!run(folder, "gdb --version").succeeded)
    return void(std::printf("%s: skipped: no gdb\n", test));
  auto ran = run(folder, "gdb -batch -nx -ex 'set debuginfod enabled off' -ex 'set breakpoint pending on'"
                         " -ex 'break orc_tools_inside' -ex 'break orc_tools_removed'"
                         " -ex run -ex backtrace -ex 'info symbol orc_busy_leaf' -ex continue"
                         " -ex 'info symbol orc_busy_leaf' --args '" + self + "' gdb observer");
  if (has(ran.printed, "ptrace: ") || has(ran.printed, "Could not trace"))
    return void(std::printf("%s: skipped: gdb may not trace\n", test));
  must_have(ran.printed, {"#0 ", "orc_tools_inside", "#1 ", "orc_busy_caller", "#2 ", "main",
                          // Gone when the object is.
                          "orc_busy_leaf in section", "orc_tools_removed", "No symbol \"orc_busy_leaf\""});
  std::printf("%s: ok\n", test);
}

// Of the samples, how many are in the leaf, and how many of these have its caller and `main` behind it.
void must_be_resolved(const std::string &script, const std::string &why) {
  size_t samples = 0, in_leaf = 0, chained = 0;
  std::string sample;
  for (auto &line : lines(script + "\n\n")) {
    if (!line.empty()) {
      sample += line + "\n";
      continue;
    }
    samples += !sample.empty();
    auto leaf = sample.find("orc_busy_leaf"), caller = sample.find("orc_busy_caller");
    in_leaf += leaf != std::string::npos;
    chained += leaf != std::string::npos && caller != std::string::npos && leaf < caller &&
               sample.find("main", caller) != std::string::npos;
    sample.clear();
  }
  if (samples > 10 && in_leaf * 2 > samples && chained * 10 > in_leaf * 9)
    return;
  std::fprintf(stderr, "%s: %zu samples, %zu in orc_busy_leaf, %zu with its callers:\n%s\n", why.c_str(), samples,
               in_leaf, chained, script.c_str());
  std::abort();
}

void perf_resolves(const std::string &self, const std::string &folder) {
  auto probe = run(folder, "perf record -q -e cpu-clock:u -o probe.data -- true");
  if (!probe.succeeded) {
    auto printed = lines(probe.printed);
    return void(std::printf("perf_resolves: skipped: perf record: %s\n", printed.empty() ? "" : printed[0].c_str()));
  }
  auto record = "perf record -q -k mono -e cpu-clock:u --call-graph fp -o perf.data -- '" + self + "' perf";
  auto must_run = [&](const std::string &command) {
    auto ran = run(folder, command);
    if (!ran.succeeded)
      std::fprintf(stderr, "%s: %s\n", command.c_str(), ran.printed.c_str());
    MUST(ran.succeeded);
    return ran.printed;
  };
  auto printed = must_run(record + " map");
  auto script = must_run("perf script -i perf.data -F ip,sym 2>/dev/null");
  auto pid = printed.substr(printed.find("pid=") + 4);
  auto map = "/tmp/perf-" + pid.substr(0, pid.find(' ')) + ".map";
  // The call of the program goes through a stub, which has a name of its own.
  std::ifstream file(map);
  std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  MUST(unlink(map.c_str()) == 0);
  must_have(all, {" orc_busy_leaf\n", " orc_busy_caller\n"});
  MUST(has(all, " orc_tools_inside@plt\n"));
  must_be_resolved(script, "perf map");

  must_run(record + " dump");
  must_run("perf inject --jit -i perf.data -o jitted.data");
  must_be_resolved(must_run("perf script -i jitted.data -F ip,sym 2>/dev/null"), "jitdump");

  // The dump has the unwind tables of both functions, and so have the files that perf makes of it. (perf 6.1 does not
  // unwind by them: `JitDump` says why.)
  must_run("perf record -q -k mono -F 99 -e cpu-clock:u -o perf.data -- '" + self + "' perf tables");
  must_run("rm -f jitted-*.so && perf inject --jit -i perf.data -o jitted.data");
  auto tables = run(folder, "readelf --debug-dump=frames jitted-*.so").printed;
  size_t described = 0;
  for (auto at = tables.find("FDE cie="); at != std::string::npos; at = tables.find("FDE cie=", at + 1))
    ++described;
  if (described < 2)
    std::fprintf(stderr, "%zu functions are described in:\n%s\n", described, tables.c_str());
  MUST(described >= 2);
  std::printf("perf_resolves: ok\n");
}

} // namespace

int main(int argc, char **argv) {
  auto wanted = std::string(argc > 1 ? argv[1] : "");
  auto how = std::string(argc > 2 ? argv[2] : "");
  if (!wanted.empty())
    prepare_llvm();
  if (wanted == "gdb" && how == "observer") {
    under_gdb_with_observer();
  } else if (wanted == "gdb") {
    under_gdb(how == "debuggable" ? Memory::Debuggable : Memory::Default);
  } else if (wanted == "perf") {
    under_perf(how == "map" ? PALIMPSEST_PERF_MAP : PALIMPSEST_JIT_DUMP,
               how == "tables" ? without_frame_pointers() : busy);
  } else {
    char self[4096] = {};
    MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    char folder[] = "/tmp/orc-tools-XXXXXX";
    MUST(mkdtemp(folder) != nullptr);
    gdb_stops_and_unwinds(self, folder, Memory::Default);
    gdb_stops_and_unwinds(self, folder, Memory::Debuggable);
    gdb_knows_names_by_the_observer(self, folder);
    perf_resolves(self, folder);
    MUST(run("/", std::string("rm -r ") + folder).succeeded);
  }
}
