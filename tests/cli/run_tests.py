"""Runs the tests of one command: run_tests.py COMMAND."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE / sys.argv[1]))
suite = unittest.defaultTestLoader.loadTestsFromName(f"test_{sys.argv[1]}")
result = unittest.TextTestRunner(verbosity=1).run(suite)
sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
