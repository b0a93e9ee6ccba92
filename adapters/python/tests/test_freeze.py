"""Freezing, forking, and what is refused. Each test is a process of its own: a freeze cannot be undone."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import palimpsest


def run(program, *arguments, environment=None, flags=()):
    """Runs a program in a Python of its own, and returns what it printed. If it fails, so does the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"{done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


#: Answers as the object of `palimpsest run` does, and imports what it may import.
OBJECT = """
int madvise(void *, unsigned long, int);
int (*used)(void *, unsigned long, int) = madvise;
int palimpsest_serves(void) { return SERVES; }
"""


class Freeze(unittest.TestCase):
    def test_children_see_the_bytes_and_the_report_tells(self):
        run(
            """
            import gc, os, palimpsest
            heap = {number: str(number) * 20 for number in range(200_000)}
            assert palimpsest.report() is None and palimpsest.frozen_bytes() == 0
            planned = palimpsest.survey()
            assert planned.frozen > 20 << 20 and palimpsest.frozen_bytes() == 0
            report = palimpsest.freeze(measure=True)
            assert report.frozen > 20 << 20 and report == palimpsest.report() and "froze" in str(report).lower()
            assert report.fork_before > 0 and report.fork_after > 0 and report.taken > 0
            assert palimpsest.frozen_bytes() > 20 << 20
            assert gc.get_freeze_count() > 0
            for forks in (os.fork, palimpsest.fork):
                for number in range(3):
                    child = forks()
                    if child == 0:
                        right = all(heap[key] == str(key) * 20 for key in range(0, 200_000, 97))
                        heap[number] = "changed"
                        os._exit(0 if right and heap[number] == "changed" else 1)
                    assert os.waitpid(child, 0)[1] == 0
                    assert heap[number] == str(number) * 20
            assert palimpsest.status().forks == 3
            """
        )

    def test_slices_freeze_bit_by_bit_and_thawing_takes_it_back(self):
        run(
            """
            import os, palimpsest
            assert palimpsest.progress().stage == "none" and palimpsest.next_slice() is None
            assert palimpsest.freeze_slice().slices == 0
            heap = bytearray(b"x") * (24 << 20)
            report = palimpsest.freeze(pause=0.0005, extent=4 << 20)
            plan = palimpsest.progress()
            assert plan.stage == "under-way" and plan.planned > 20 << 20 and plan.frozen == 0, plan
            assert palimpsest.next_slice() is not None
            first = palimpsest.freeze_slice()
            assert first.slices == 1 and 0 < first.frozen < plan.planned, first
            palimpsest.put_off_slices(100)
            assert palimpsest.next_slice() > 100
            # Each fork takes a slice, too.
            if palimpsest.fork() == 0:
                os._exit(0 if heap == bytearray(b"x") * (24 << 20) and palimpsest.next_slice() is None else 1)
            assert os.wait()[1] == 0 and palimpsest.progress().slices == 2
            heap[5 << 20] = 7
            for _ in range(10_000):
                if palimpsest.freeze_slice().stage != "under-way":
                    break
            done = palimpsest.progress()
            assert done.stage == "done" and done.frozen > 20 << 20 and done.longest <= done.taken, done
            status = palimpsest.status()
            assert status.frozen > 20 << 20 and status.extents > 0 and status.price >= status.debt >= 0, status
            if palimpsest.fork() == 0:
                right = heap[5 << 20] == 7 and heap[:5 << 20] == bytearray(b"x") * (5 << 20)
                os._exit(0 if right else 1)
            assert os.wait()[1] == 0
            palimpsest.thaw()
            assert palimpsest.frozen_bytes() == 0 and heap[5 << 20] == 7 and heap[-1] == ord("x")
            """
        )

    def test_gathering_by_a_deputy_keeps_the_bytes(self):
        run(
            """
            import os, palimpsest, subprocess, sys
            heap = bytearray(b"y") * (32 << 20)
            palimpsest.freeze(pause=0.002, pages="gather", pays_within=1000, errands="deputy")
            for _ in range(3):
                for _ in range(20):
                    palimpsest.freeze_slice()
                if palimpsest.fork() == 0:
                    os._exit(0 if heap == bytearray(b"y") * (32 << 20) else 1)
                assert os.waitpid(-1, 0)[1] == 0
            palimpsest.dismiss_deputy()
            assert heap == bytearray(b"y") * (32 << 20)
            """
        )

    def test_thawing_beside_a_thread_is_refused(self):
        run(
            """
            import os, threading, palimpsest
            heap = bytearray(b"z") * (8 << 20)
            palimpsest.freeze()
            over = threading.Event()
            thread = threading.Thread(target=over.wait)
            thread.start()
            try:
                palimpsest.thaw()
            except palimpsest.FreezeError as error:
                assert "other threads" in str(error), error
            else:
                raise AssertionError("thawed beside a thread")
            over.set()
            thread.join()
            # Python before 3.13 does not wait until the kernel has ended it, too.
            while len(os.listdir("/proc/self/task")) > 1:
                pass
            palimpsest.thaw()
            assert palimpsest.frozen_bytes() == 0 and heap == bytearray(b"z") * (8 << 20)
            """
        )

    def test_a_fork_is_the_interpreters(self):
        run(
            """
            import os, sys, threading, palimpsest
            seen, audited = [], []
            sys.addaudithook(lambda name, _: audited.append(name) if name == "os.fork" else None)
            os.register_at_fork(before=lambda: seen.append("before"),
                                after_in_parent=lambda: seen.append("parent"),
                                after_in_child=lambda: seen.append("child"))
            palimpsest.freeze()
            child = palimpsest.fork()
            if child == 0:
                # The child can start threads: its interpreter knows that it was forked.
                thread = threading.Thread(target=lambda: seen.append("thread"))
                thread.start()
                thread.join()
                os._exit(0 if seen == ["before", "child", "thread"] else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert seen == ["before", "parent"] and audited == ["os.fork"], (seen, audited)
            """
        )

    def test_memory_that_grows_moves_and_goes_is_right(self):
        run(
            """
            import os, palimpsest
            grown, kept = bytearray(b"x" * (8 << 20)), bytearray(b"y" * (8 << 20))
            lists = [[number] * 1000 for number in range(1000)]
            palimpsest.freeze()
            for step in range(4):
                grown.extend(bytes([step]) * (8 << 20))
                del lists[::2]
                lists.append([step] * 500_000)
                if palimpsest.fork() == 0:
                    right = grown[:8 << 20] == b"x" * (8 << 20) and kept == b"y" * (8 << 20)
                    right = right and grown[(step + 1) * (8 << 20):] == bytes([step]) * (8 << 20)
                    os._exit(0 if right else 1)
                assert os.wait()[1] == 0
            del grown[1 << 20:]
            grown.extend(bytes(32 << 20))
            assert grown[:1 << 20] == b"x" * (1 << 20) and grown[1 << 20:] == bytes(32 << 20)
            """
        )

    def test_threads_are_refused_or_held(self):
        run(
            """
            import os, threading, palimpsest
            over, counted, counts = threading.Event(), [0], threading.Event()
            def count():
                while not over.is_set():
                    counted[0] += 1
                    counts.set()
            thread = threading.Thread(target=count, daemon=True)
            thread.start()
            heap = [str(number) for number in range(200_000)]
            try:
                palimpsest.freeze()
            except palimpsest.FreezeError as error:
                assert "2 threads" in str(error), error
            else:
                raise AssertionError("frozen beside a thread")
            assert palimpsest.frozen_bytes() == 0
            assert palimpsest.freeze(threads="stop").frozen > 5 << 20
            counts.clear()
            counts.wait()
            over.set()
            thread.join()
            assert heap[199_999] == "199999"
            """
        )

    def test_what_is_wrong_is_told_and_nothing_is_frozen(self):
        for settings, kind, words in [
            ({"threads": "kill"}, ValueError, "refuse, stop"),
            ({"pages": "small"}, ValueError, "base, huge, gather"),
            ({"answers": "io-uring"}, TypeError, "list of names"),
            ({"answers": ["nothing"]}, ValueError, "raw-allocator"),
            ({"least": -1}, OverflowError, ""),
            ({"pays_within": "soon"}, TypeError, ""),
        ]:
            with self.subTest(settings=settings), self.assertRaisesRegex(kind, words):
                palimpsest.survey(**settings)
        for settings, kind, words in [
            ({"pause": 0}, ValueError, "above 0"),
            ({"pause": float("nan")}, ValueError, "above 0"),
            ({"pause": "short"}, TypeError, ""),
            ({"extent": -1}, OverflowError, ""),
            ({"errands": "nobody"}, ValueError, "own, deputy"),
        ]:
            with self.subTest(settings=settings), self.assertRaisesRegex(kind, words):
                palimpsest.freeze(**settings)
        with self.assertRaises(ValueError):
            palimpsest.put_off_slices(-1)
        with self.assertRaises(TypeError):
            palimpsest.freeze(unknown=1)
        self.assertEqual(palimpsest.frozen_bytes(), 0)

    def test_who_discards_memory_is_refused_by_name(self):
        run(
            """
            import ctypes, os, palimpsest, subprocess, sys, tempfile
            with tempfile.TemporaryDirectory() as folder:
                source, library = os.path.join(folder, "gives.c"), os.path.join(folder, "libgives.so")
                with open(source, "w") as file:
                    file.write("#include <sys/mman.h>\\nint gives(void *a, unsigned long n)"
                               "{ return madvise(a, n, MADV_DONTNEED); }")
                try:
                    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", source, "-o", library], check=True)
                except FileNotFoundError:
                    print("skipped: no C compiler `cc`")
                    sys.exit()
                ctypes.CDLL(library)
                try:
                    palimpsest.freeze()
                except palimpsest.FreezeError as error:
                    assert "libgives.so" in str(error) and "discards" in str(error), error
                else:
                    raise AssertionError("frozen beside an object that discards")
                palimpsest.freeze(answers=["discards"])
                assert palimpsest.frozen_bytes() > 0
            """
        )

    def test_a_refusal_leaves_the_collector_as_it_was(self):
        run(
            """
            import gc, palimpsest, threading
            over = threading.Event()
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            try:
                palimpsest.freeze()
            except palimpsest.FreezeError:
                assert gc.get_freeze_count() == 0
            else:
                raise AssertionError("frozen beside a thread")
            over.set()
            thread.join()
            """
        )

    def test_names_of_mapped_files_are_any_bytes(self):
        run(
            """
            import mmap, os, palimpsest, tempfile
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(os.fsencode(folder), b"caf\\xe9")
                try:
                    with open(path, "w+b") as file:
                        file.truncate(4096)
                        private = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
                except OSError as error:
                    print(f"skipped: no such file here, or none that may be executed: {error}")
                    raise SystemExit
                assert not palimpsest.is_served()
                palimpsest.freeze()
                assert palimpsest.frozen_bytes() > 0
            """
        )

    def test_the_object_of_palimpsest_run_is_asked_whether_it_serves(self):
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no cc, to make something that answers as the object does")
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "object.c")
            made = os.path.join(folder, "libpalimpsest_preload.so")
            with open(source, "w") as file:
                file.write(OBJECT)
            for serves in (0, 1):
                flags = ["-shared", "-fPIC", "-w", f"-DSERVES={serves}"]
                subprocess.run([compiler, *flags, "-o", made, source], check=True)
                run(
                    """
                    import palimpsest, sys
                    serves = sys.argv[1] == "1"
                    assert palimpsest.is_served() is serves
                    context = palimpsest.get_context(refused="raise")
                    context.freeze()
                    assert (palimpsest.frozen_bytes() > 0) is not serves
                    try:
                        palimpsest.freeze()
                    except palimpsest.FreezeError as error:
                        assert serves and "serves this process" in str(error), error
                    else:
                        assert not serves
                    """,
                    str(serves),
                    environment={"LD_PRELOAD": made},
                )

    def test_mimalloc_is_refused(self):
        if sys.version_info < (3, 13):
            self.skipTest("PYTHONMALLOC=mimalloc is of Python 3.13")
        run(
            """
            import palimpsest
            try:
                palimpsest.freeze()
            except palimpsest.FreezeError as error:
                assert "mimalloc" in str(error)
            else:
                raise AssertionError("frozen with mimalloc")
            """,
            environment={"PYTHONMALLOC": "mimalloc"},
        )

    def test_children_have_no_descriptor_more(self):
        run(
            """
            import os, palimpsest
            heap = [str(number) for number in range(200_000)]
            before = sorted(os.listdir("/proc/self/fd"))
            palimpsest.freeze()
            assert sorted(os.listdir("/proc/self/fd")) == before
            if palimpsest.fork() == 0:
                os._exit(0 if sorted(os.listdir("/proc/self/fd")) == before else 1)
            assert os.wait()[1] == 0
            """
        )


if __name__ == "__main__":
    unittest.main()
