"""Runs the examples of the book with little memory. They assert that frozen and plain ones compute the same."""

import json
import os
import subprocess
import sys
import unittest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/python")


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments, **environment):
        command = [sys.executable, os.path.join(EXAMPLES, name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_data_loader(self):
        for context in ("fork", "frozen"):
            (told,) = self.run_example("data_loader.py", "--bytes", "24M", "--workers", "3", "--context", context)
            self.assertEqual(told["frozen_mib"] >= 20, context == "frozen", told)

    def test_web_application(self):
        try:
            import gunicorn  # noqa: F401
        except ImportError:
            self.skipTest("gunicorn is not installed")
        told = self.run_example("web_measure.py", "--mib", "16", "--requests", "20")
        self.assertEqual([one["way"] for one in told], ["plain", "gc", "frozen"])

    def test_asgi_application(self):
        try:
            import uvicorn
        except ImportError:
            self.skipTest("uvicorn is not installed")
        if tuple(map(int, uvicorn.__version__.split(".")[:2])) < (0, 30):
            self.skipTest(f"uvicorn {uvicorn.__version__} replaces no workers")
        told = self.run_example("web_measure.py", "--server", "uvicorn", "--mib", "16", "--requests", "20")
        self.assertEqual([one["way"] for one in told], ["plain", "frozen"])

    def test_slices(self):
        (told,) = self.run_example("slices.py", SLICES_MIB="24")
        self.assertEqual(told["stage"], "done", told)
        self.assertGreaterEqual(told["frozen_mib"], 20, told)
        self.assertGreater(told["slices"], 5, told)

    def test_what_spoils(self):
        told = {one["way"]: one["copied_mib"] for one in self.run_example("what_spoils.py", SPOIL_MIB="8")}
        looked, read = told["every text of a list is looked at"], told["every byte of a bytearray is read"]
        self.assertGreater(looked, 5)
        self.assertLess(read, 2)
        self.assertLess(told["lists of lists are collected, after gc.freeze()"], 2)
        self.assertGreater(told["lists of lists are collected, without it"], 5)


if __name__ == "__main__":
    unittest.main()
