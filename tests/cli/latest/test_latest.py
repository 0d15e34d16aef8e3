import subprocess

from harness import RESHARD, CommandTest


class LatestTest(CommandTest):
    def latest(self, *arguments):
        answer = self.run_reshard("latest", "/run", *arguments)
        return answer.code, self.plain(answer.out).strip()

    def test_none(self):
        (self.dir / "run" / "step-1").mkdir(parents=True)
        self.assertEqual(self.latest(), (1, ""))
        self.assertIn("no complete checkpoint", self.run_reshard("latest", "/run").last_line)
        self.assertEqual(self.run_reshard("latest", "--json", "/run").json(),
                         {"latest": None, "path": None, "unique_id": None, "skipped": []})

    def test_numbers_are_compared_as_numbers(self):
        self.make("run/step-10")
        self.make("run/step-9")
        self.assertEqual(self.latest(), (0, "/run/step-10"))

    def test_ids_are_compared_as_numbers(self):
        self.make("run", 2)
        self.make("run", 10)
        self.assertEqual(self.latest(), (0, "/run@10"))
        json = self.run_reshard("latest", "--json", "/run").json()
        self.assertEqual((json["path"], json["unique_id"]), (str(self.dir / "run"), 10))

    def test_the_answer_is_what_other_commands_take(self):
        self.make("run/a@3", 5)
        self.make("run/a@3", 6)
        _, path = self.latest()
        self.assertEqual(path, "/run/a@3@6")
        self.assertEqual(self.run_reshard("info", "--json", path).json()["unique_id"], 6)

    def test_a_half_written_newest_is_passed_over(self):
        self.make("run/step-1")
        path = self.make("run/step-2")
        (path / "0.reshard").rename(path / "0.a0.reshard.tmp")  # as a save that died
        self.assertEqual(self.latest(), (0, "/run/step-1"))
        path = self.make("run/step-3")
        with open(path / "1_0.safetensors", "r+b") as file:
            file.truncate(5000)
        answer = self.run_reshard("latest", "/run")
        self.assertEqual((answer.code, self.plain(answer.out)), (0, "/run/step-1\n"))
        self.assertIn("warning: %s/run/step-3@0 is not complete" % self.dir, answer.err)
        skipped = self.run_reshard("latest", "--json", "/run").json()["skipped"]
        self.assertEqual([(s["path"], s["reason"]) for s in skipped], [(str(self.dir / "run/step-3"), "FILE_SIZE")])

    def test_an_unreadable_directory_is_not_none(self):
        self.make("run/step-1")
        (self.dir / "run" / "step-2").mkdir(mode=0)
        answer = self.run_reshard("latest", "/run", as_nobody=True)
        self.assertEqual((answer.code, answer.out), (2, ""))
        self.assertIn("step-2", answer.err)

    def test_an_unreadable_file_is_not_damage(self):
        self.make("run/step-1")
        (self.make("run/step-2") / "0_0.safetensors").chmod(0)
        answer = self.run_reshard("latest", "/run", as_nobody=True)
        self.assertEqual((answer.code, answer.out), (2, ""))

    def test_a_missing_directory_could_be_an_unmounted_disk(self):
        self.assertIn("no such directory", self.assert_usage_error("latest", "/run").err)

    def test_takes_a_directory(self):
        self.make("run", 1)
        answer = self.assert_usage_error("latest", "/run@1")
        self.assertIn("without @ID", answer.err)
        self.assertEqual(self.plain(answer.last_line), "reshard: write /run")

    def test_hidden_directories_and_links_are_not_entered(self):
        self.make("run/step-1")
        self.make("run/.snapshot/step-9")
        self.make("elsewhere/step-9")
        (self.dir / "run" / "z-9").symlink_to(self.dir / "elsewhere" / "step-9")
        self.assertEqual(self.latest(), (0, "/run/step-1"))

    def test_the_line_for_job_scripts(self):
        line = 'ckpt=$("$0" latest "$1") || [ $? -eq 1 ] || exit 2; echo "from ${ckpt:-scratch}"'
        def run(path):
            done = subprocess.run(["sh", "-c", line, RESHARD, str(path)], capture_output=True, text=True)
            return done.returncode, self.plain(done.stdout)
        (self.dir / "empty").mkdir()
        self.make("run/step-1")
        self.assertEqual(run(self.dir / "empty"), (0, "from scratch\n"))
        self.assertEqual(run(self.dir / "run"), (0, "from /run/step-1\n"))
        self.assertEqual(run(self.dir / "missing"), (2, ""))
        line = 'mkdir -p "$1"; ' + line  # as --help shows it
        self.assertEqual(run(self.dir / "missing"), (0, "from scratch\n"))
