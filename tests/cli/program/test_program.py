import os
import pathlib
import subprocess

from harness import RESHARD, CommandTest

COMMANDS = ["info", "ls", "verify", "diff", "export", "convert", "latest", "gc"]


class ProgramTest(CommandTest):
    def test_version(self):
        answer = self.run_reshard("--version")
        self.assertRegex(answer.out, r"^reshard \d+\.\d+\.\d+\n$")
        self.assertEqual(answer.code, 0)

    def test_help_names_every_command(self):
        for words in (["help"], ["--help"], ["-h"]):
            answer = self.run_reshard(*words)
            self.assertEqual(answer.code, 0)
            for command in COMMANDS:
                self.assertRegex(answer.out, rf"\n  {command} +\w")
            self.assertIn("examples:", answer.out)
            self.assertIn("exit status:", answer.out)

    def test_help_of_every_command(self):
        for command in COMMANDS:
            with self.subTest(command):
                self.assert_help(command)

    def test_help_shows_values_without_their_checks(self):
        for command in COMMANDS:
            self.assertNotRegex(self.run_reshard(command, "--help").out, r"UINT|INT |TEXT")
        self.assertIn("--keep: 1 required N missing", self.assert_usage_error("gc", "/run", "--keep").err)

    def test_failures_with_json_are_json(self):
        self.make("run", 1)
        (self.dir / "empty").mkdir()
        for words, code, reason in (
                (["info", "--json", "/missing"], 2, "NO_SUCH_PATH"), (["info", "--json", "/empty"], 1, "NO_SNAPSHOT"),
                (["ls", "/run@7", "--json"], 1, "NO_SNAPSHOT"), (["latest", "--json", "/missing"], 2, "NO_SUCH_PATH"),
                (["verify", "--json", "--key", "no", "/run"], 1, "NO_SUCH_KEY"),
                (["gc", "--json", "/run", "--keep", "0"], 2, "USAGE"), (["index", "--json"], 2, "USAGE")):
            with self.subTest(words):
                answer = self.run_reshard(*words)
                error = answer.json()["error"]
                self.assertEqual((answer.code, error["reason"], sorted(error)), (code, reason, ["code", "message", "reason"]))
                self.assertIn("error: ", answer.err)

    def test_paths_that_are_none(self):
        self.make("run", 3)
        for wrong in ("x", "03", ""):
            answer = self.assert_usage_error("info", f"/run@{wrong}")
            self.assertIn(f"'{wrong}' is no snapshot id", answer.err)
            self.assertIn("must be a number", answer.last_line)
        for words in (["info", ""], ["latest", ""], ["gc", "--keep", "1", ""]):
            self.assertIn("the path is empty", self.assert_usage_error(*words).err)

    def test_a_wrong_command_suggests_the_right_one(self):
        self.assertIn("did you mean `reshard info`?", self.assert_usage_error("inof").last_line)
        self.assertIn("did you mean `reshard verify`?", self.assert_usage_error("verfy", "x").last_line)
        self.assertIn("`reshard help`", self.assert_usage_error("frobnicate").last_line)
        self.assertIn("`reshard help`", self.assert_usage_error().last_line)
        self.assertIn("did you mean `reshard info", self.assert_usage_error("/").last_line)

    def test_a_wrong_option_suggests_the_right_one(self):
        self.assertIn("did you mean --json?", self.assert_usage_error("ls", "--jsno", "x").last_line)
        self.assertIn("usage: reshard ls", self.assert_usage_error("ls").last_line)
        self.assertIn("usage: reshard gc", self.assert_usage_error("gc", "x").last_line)

    def test_a_wrong_path_suggests_the_nearest(self):
        self.make("run/step-100")
        for command in COMMANDS[:3]:
            answer = self.assert_usage_error(command, "/run/step-10O")
            self.assertIn("no such directory", answer.err)
            self.assertIn("did you mean %s/run/step-100?" % self.dir, answer.last_line)
        self.assertIn("did you mean %s/run?" % self.dir, self.assert_usage_error("info", "/rnu/step-100").last_line)

    def test_a_file_of_a_checkpoint_suggests_its_directory(self):
        self.make("run", 7)
        answer = self.assert_usage_error("info", "/run/7.reshard")
        self.assertIn("did you mean %s/run@7?" % self.dir, answer.last_line)

    def test_a_directory_without_a_checkpoint_names_those_below(self):
        self.make("run/step-9")
        self.make("run/step-10")
        answer = self.run_reshard("info", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn("below it: %s/run/step-10, %s/run/step-9" % (self.dir, self.dir), answer.err)
        self.assertIn("reshard latest", answer.last_line)

    def test_an_empty_directory(self):
        (self.dir / "run").mkdir()
        answer = self.run_reshard("info", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn("no checkpoint in it or below", answer.err)

    def test_another_format_is_said_so(self):
        (self.dir / "run").mkdir()
        (self.dir / "run" / ".metadata").write_bytes(b"x")
        answer = self.run_reshard("info", "/run")
        self.assertEqual(answer.code, 1)
        self.assertIn(".metadata: byte 0", answer.err)

    def test_one_snapshot_by_id_and_a_path_that_looks_like_it(self):
        self.make("run", 0, salt=5)
        self.make("run", 3)
        self.assertEqual(self.run_reshard("info", "--json", "/run@0").json()["unique_id"], 0)
        self.assertEqual(self.run_reshard("info", "--json", "/run").json()["unique_id"], 3)
        answer = self.run_reshard("info", "/run@4")
        self.assertEqual(answer.code, 1)
        self.assertIn("it holds 0, 3: write %s/run@3" % self.dir, answer.last_line)
        self.make("run@3", 8)
        self.assertEqual(self.run_reshard("info", "--json", "/run@3").json()["unique_id"], 8)
        self.assertEqual(self.run_reshard("info", "--json", "/run@3@8").json()["unique_id"], 8)

    def test_a_full_disk_is_an_error(self):
        self.make("run")
        with open("/dev/full", "w") as full:
            done = subprocess.run([RESHARD, "ls", self.dir / "run"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("stdout", done.stderr)

    def test_a_closed_pipe_ends_it_quietly(self):
        self.make("run")
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([RESHARD, "ls", self.dir / "run"], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        self.assertEqual(done.returncode, -13)  # SIGPIPE
        self.assertEqual(done.stderr, "")

    def test_man_pages_and_completion_have_every_option(self):
        documents = pathlib.Path(os.environ["DOCUMENTS"])
        completion = (documents / "completion" / "reshard").read_text()
        self.assertEqual(subprocess.run(["bash", "-n", documents / "completion" / "reshard"]).returncode, 0)
        self.assertIn("reshard\\-verify", (documents / "man" / "reshard.1").read_text())
        for command in COMMANDS:
            page = (documents / "man" / f"reshard-{command}.1").read_text()
            self.assertIn('.SH "EXIT STATUS"', page)
            self.assertIn(".SH EXAMPLES", page)
            for line in self.run_reshard(command, "--help").out.splitlines():
                words = line.split()
                if line.startswith("  -"):
                    option = next(word.rstrip(",") for word in words if word.startswith("--"))
                    self.assertIn("\\-\\-" + option[2:].replace("-", "\\-"), page)
                    self.assertIn(option, completion)

    def test_completion_completes(self):
        script = pathlib.Path(os.environ["DOCUMENTS"]) / "completion" / "reshard"
        lines = f'. {script}; COMP_WORDS=(reshard "$1"); COMP_CWORD=1; _reshard; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", lines, "x", "ver"], capture_output=True, text=True)
        self.assertEqual(done.stdout, "verify\n")
        lines = f'. {script}; COMP_WORDS=(reshard gc --k); COMP_CWORD=2; _reshard; echo "${{COMPREPLY[*]}}"'
        done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True)
        self.assertEqual(done.stdout, "--keep\n")
