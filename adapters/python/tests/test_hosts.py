"""Tests multiprocessing, `python -m palimpsest run`, gunicorn and uvicorn."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
import urllib.request

from test_freeze import run


class Multiprocessing(unittest.TestCase):
    def test_processes_pools_and_executors_have_the_parents_memory(self):
        run(
            """
            import concurrent.futures, multiprocessing, os, palimpsest
            heap = {number: str(number) for number in range(200_000)}
            def look(number):
                return heap[number], os.getpid(), palimpsest.frozen_bytes() > 0
            def put(queue, number):
                queue.put(look(number))
            if __name__ == "__main__":
                context = palimpsest.get_context()
                assert context.get_start_method() == "fork" and palimpsest.frozen_bytes() == 0
                queue = context.Queue()
                processes = [context.Process(target=put, args=(queue, number)) for number in range(3)]
                for process in processes:
                    process.start()
                found = [queue.get() for _ in processes]
                for process in processes:
                    process.join()
                    assert process.exitcode == 0 and process.pid in [pid for _, pid, _ in found]
                assert sorted(text for text, _, _ in found) == ["0", "1", "2"]
                assert all(frozen for _, _, frozen in found) and palimpsest.frozen_bytes() > 5 << 20
                with context.Pool(2) as pool:
                    assert [text for text, _, _ in pool.map(look, range(50))] == [str(n) for n in range(50)]
                with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
                    # Workers are forked before the executor starts threads, as those of "fork".
                    assert not getattr(executor, "_safe_to_dynamically_spawn_children", False)
                    assert [text for text, _, _ in executor.map(look, range(50))] == [str(n) for n in range(50)]
                assert palimpsest.status().forks >= 5 and os.fork is not palimpsest.fork
                failing = context.Process(target=os._exit, args=(7,))
                failing.start()
                failing.join()
                assert failing.exitcode == 7
            """,
            # Pools start threads, and beside threads Python 3.12 warns of any fork.
            flags=("-W", "ignore::DeprecationWarning"),
        )

    def test_a_refusal_is_a_warning_or_an_error(self):
        run(
            """
            import threading, warnings, palimpsest
            over = threading.Event()
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            def nothing():
                pass
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    process = palimpsest.get_context().Process(target=nothing)
                    process.start()
                    process.join()
                    assert process.exitcode == 0
            caught = [one for one in caught if one.category is palimpsest.FreezeWarning]
            assert len(caught) == 2 and "2 threads" in str(caught[0].message), caught
            try:
                palimpsest.get_context(refused="raise").Process(target=nothing).start()
            except palimpsest.FreezeError:
                pass
            else:
                raise AssertionError("started")
            over.set()
            thread.join()
            """
        )

    def test_installed_it_is_found_by_name(self):
        run(
            """
            import multiprocessing, os, palimpsest
            from palimpsest.context import FrozenContext
            plain = os.fork
            palimpsest.install()
            assert os.fork is palimpsest.fork
            assert isinstance(multiprocessing.get_context("frozen"), FrozenContext)
            palimpsest.uninstall()
            assert os.fork is plain
            """
        )

    def test_as_the_default_it_is_fork_for_children_that_are_no_forks(self):
        run(
            """
            import multiprocessing, palimpsest
            palimpsest.install()
            multiprocessing.set_start_method("frozen")
            child = multiprocessing.get_context("spawn").Process(target=int)
            child.start()
            child.join()
            assert child.exitcode == 0, child.exitcode
            """
        )

    def test_a_fork_that_somebody_else_has_put_there_stays(self):
        run(
            """
            import os, posix
            calls = []
            def theirs():
                calls.append(1)
                return posix.fork()
            os.fork = theirs
            import palimpsest
            child = palimpsest.get_context().Process(target=int)
            child.start()
            child.join()
            assert child.exitcode == 0 and calls == [1] and os.fork is theirs
            """
        )

    def test_settings_are_checked_when_the_context_is_made(self):
        run(
            """
            import palimpsest
            palimpsest.get_context(answers=(name for name in ["io-uring"]))
            for settings, error in [({"threads": "stpo"}, ValueError), ({"thread": "stop"}, TypeError)]:
                try:
                    palimpsest.get_context(**settings)
                except error:
                    continue
                raise AssertionError(settings)
            """
        )


PROGRAM = """
import os, sys
heap = [str(number) * 10 for number in range(200_000)]
if os.fork() == 0:
    os._exit(0 if heap[199_999] == "199999" * 10 else 1)
assert os.wait()[1] == 0
import palimpsest
print(__name__, sys.argv[1:], palimpsest.frozen_bytes() > 10 << 20, palimpsest.status().forks)
"""


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory()) if hasattr(self, "enterContext") else None
        if self.folder is None:
            temporary = tempfile.TemporaryDirectory()
            self.addCleanup(temporary.cleanup)
            self.folder = temporary.name
        self.program = os.path.join(self.folder, "program.py")
        with open(self.program, "w") as file:
            file.write(PROGRAM)

    def palimpsest(self, *arguments):
        command = [sys.executable, "-m", "palimpsest", "run", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder)

    def test_a_program_is_frozen_at_its_first_fork(self):
        done = self.palimpsest("--report", self.program, "--its", "own")
        self.assertEqual((done.returncode, done.stdout), (0, "__main__ ['--its', 'own'] True 1\n"), done.stderr)
        self.assertIn("froze", done.stderr)

    def test_a_module_is_run_too(self):
        done = self.palimpsest("-m", "program", "x")
        self.assertEqual((done.returncode, done.stdout), (0, "__main__ ['x'] True 1\n"), done.stderr)
        self.assertEqual(done.stderr, "")

    def test_modules_are_looked_for_where_python_itself_does(self):
        os.mkdir(os.path.join(self.folder, "elsewhere"))
        shown, link = os.path.join(self.folder, "shown.py"), os.path.join(self.folder, "elsewhere", "link.py")
        with open(shown, "w") as file:
            file.write("import sys; print(sys.path)")
        os.symlink(shown, link)
        for flags in [[], ["-P"]] if sys.version_info >= (3, 11) else [[]]:
            paths = [
                subprocess.run([sys.executable, *flags, *command, link], capture_output=True, text=True, cwd="/")
                for command in ([], ["-m", "palimpsest", "run"])
            ]
            self.assertEqual(paths[0].stdout, paths[1].stdout, paths[1].stderr)
            self.assertEqual(paths[0].returncode, 0)

    def test_small_programs_are_left_alone(self):
        done = self.palimpsest("--at-size", "8G", self.program)
        self.assertEqual((done.returncode, done.stdout), (0, "__main__ [] False 0\n"), done.stderr)

    def test_what_is_no_size_is_refused(self):
        done = self.palimpsest("--at-size=-1M", self.program)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no number of bytes", done.stderr)

    def test_an_unknown_answer_is_refused_before_the_program_runs(self):
        done = self.palimpsest("--trust", "typo", self.program)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("discards", done.stderr)


APPLICATION = """
import os, palimpsest
heap = {number: str(number) * 10 for number in range(200_000)}
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    number = int(environ["QUERY_STRING"])
    return [f"{heap[number]} {palimpsest.frozen_bytes() > 10 << 20} {os.getppid()}".encode()]
"""

CONFIGURATION = """
preload_app = {preload}
workers = 2
bind = "unix:{folder}/socket"
loglevel = "info"
from palimpsest.gunicorn import *
"""


ASGI = """
import os, palimpsest
heap = {number: str(number) * 10 for number in range(200_000)}
async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    number = int(scope["query_string"])
    text = f"{heap[number]} {palimpsest.frozen_bytes() > 10 << 20} {os.getppid()}"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": text.encode()})
"""


class Served(unittest.TestCase):
    """A server in a folder, whose workers answer at the socket there."""

    @contextlib.contextmanager
    def serve(self, folder, files, *command):
        for name, text in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        command = [sys.executable, "-m", *command]
        server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        try:
            yield server
        finally:
            server.terminate()
            self.told = server.stderr.read()
            server.stderr.close()
            server.wait()

    def ask(self, folder, number):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(os.path.join(folder, "socket"))
            asking.sendall(f"GET /?{number} HTTP/1.0\r\n\r\n".encode())
            answer = b""
            while part := asking.recv(4096):
                answer += part
        return answer.split(b"\r\n\r\n", 1)[1].decode()

    def wait(self, folder, server):
        """Waits until the server answers, and returns the answer; fails if it has ended."""
        while server.poll() is None:
            try:
                return self.ask(folder, 0)
            except (FileNotFoundError, ConnectionRefusedError):
                os.sched_yield()
        self.fail(f"the server has ended: {server.stderr.read()}")


class Gunicorn(Served):
    def serve_by_gunicorn(self, folder, preload):
        files = {"app.py": APPLICATION, "conf.py": CONFIGURATION.format(preload=preload, folder=folder)}
        return self.serve(folder, files, "gunicorn", "-c", "conf.py", "app:application")

    def setUp(self):
        try:
            import gunicorn  # noqa: F401
        except ImportError:
            self.skipTest("gunicorn is not installed")

    def test_workers_answer_from_the_frozen_heap(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.serve_by_gunicorn(folder, True) as server:
                self.wait(folder, server)
                for number in range(40):
                    self.assertEqual(self.ask(folder, number), f"{str(number) * 10} True {server.pid}")
            self.assertRegex(self.told, r"palimpsest: froze \d+ MiB")

    def test_without_preload_it_is_said_that_nothing_is_frozen(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.serve_by_gunicorn(folder, False) as server:
                self.assertEqual(self.wait(folder, server), f"{'0' * 10} False {server.pid}")
            self.assertIn("set preload_app", self.told)


class UvicornsWorkers(unittest.TestCase):
    """Workers as uvicorn makes them, without it."""

    PRELUDE = """
            import multiprocessing, os, signal, sys
            import palimpsest.uvicorn
            class Config:
                app = None
                should_reload = False
            context = palimpsest.uvicorn._Context(multiprocessing.get_context("spawn"))
            def worker(target, *arguments):
                return context.Process(target=target, args=arguments, kwargs={"config": Config()})
            """

    def test_a_signal_to_a_worker_that_starts_is_not_lost(self):
        run(
            self.PRELUDE
            + """
            swallowed = []
            signal.signal(signal.SIGTERM, lambda *_: swallowed.append(1))
            sent, send = os.pipe()
            # The signal comes after the fork and before anything that the child could do about it.
            os.register_at_fork(after_in_child=lambda: os.read(sent, 1))
            process = worker(lambda config: sys.exit(3))
            process.start()
            process.terminate()
            os.write(send, b"x")
            process.join()
            assert process.exitcode == -signal.SIGTERM, process.exitcode
            # The parent is as before.
            os.kill(os.getpid(), signal.SIGTERM)
            assert swallowed == [1] and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
            """
        )

    def test_signals_are_as_in_a_worker_that_is_started_anew(self):
        run(
            self.PRELUDE
            + """
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.signal(signal.SIGHUP, lambda *_: None)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
            def look(config):
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
                assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
                assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGWINCH}
            process = worker(look)
            process.start()
            process.join()
            assert process.exitcode == 0
            """
        )

    def test_settings_are_read_at_the_first_worker(self):
        run(
            self.PRELUDE
            + """
            palimpsest.uvicorn.settings["refused"] = "shrug"
            try:
                worker(print)
            except ValueError as error:
                assert "shrug" in str(error)
            else:
                raise AssertionError("made")
            """
        )


class Uvicorn(Served):
    def serve_by_uvicorn(self, folder, module, *options):
        uds = os.path.join(folder, "socket")
        return self.serve(folder, {"app.py": ASGI}, module, "app:application", "--uds", uds, *options)

    def setUp(self):
        try:
            import uvicorn  # noqa: F401
        except ImportError:
            self.skipTest("uvicorn is not installed")

    def test_workers_are_forks_of_the_frozen_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.serve_by_uvicorn(folder, "palimpsest.uvicorn", "--workers", "2") as server:
                self.wait(folder, server)
                for number in range(40):
                    self.assertEqual(self.ask(folder, number), f"{str(number) * 10} True {server.pid}")

    def test_uvicorn_alone_shares_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.serve_by_uvicorn(folder, "uvicorn", "--workers", "2") as server:
                self.assertEqual(self.wait(folder, server), f"{'0' * 10} False {server.pid}")

    def test_signals_that_the_application_handles_are_its_workers(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "handling.py"), "w") as file:
                file.write(
                    "import signal, sys\n"
                    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
                    "application = None\n"
                )
            run(
                UvicornsWorkers.PRELUDE
                + f"""
            sys.path.insert(0, {folder!r})
            """
                + """
            class Config:
                app = "handling:application"
                should_reload = False
            stopped = []
            signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
            process = worker(lambda config: signal.raise_signal(signal.SIGTERM))
            process.start()
            process.join()
            assert process.exitcode == 5, process.exitcode
            # Else nobody could stop the server.
            signal.raise_signal(signal.SIGTERM)
            assert stopped == [1]
            """
            )

    def test_as_a_program_it_is_the_module_that_others_import(self):
        run(
            """
            import runpy, sys
            import uvicorn.main
            asked = []
            def command():
                import palimpsest.uvicorn
                asked.append(type(palimpsest.uvicorn._module().spawn) is palimpsest.uvicorn._Context)
            sys.modules["uvicorn.main"].main = command
            runpy.run_module("palimpsest.uvicorn", run_name="__main__", alter_sys=True)
            assert asked == [True], asked
            """
        )

    def test_what_reloads_is_started_anew(self):
        import multiprocessing

        import palimpsest.uvicorn

        class Config:
            app = "nothing:nothing"
            should_reload = True

        self.assertTrue(palimpsest.uvicorn.install())
        context = palimpsest.uvicorn._module().spawn
        process = context.Process(target=print, kwargs={"config": Config()})
        self.assertIsInstance(process, multiprocessing.get_context("spawn").Process)
        # Twice is once.
        self.assertTrue(palimpsest.uvicorn.install())
        self.assertIs(palimpsest.uvicorn._module().spawn, context)


if __name__ == "__main__":
    unittest.main()
