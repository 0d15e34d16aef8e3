import ast
import os
import random
import signal
import struct
import subprocess
import time

from harness import MAKE_CHECKPOINT, RESHARD, CommandTest

BYTES = {"<f4": 4, "<f2": 2, "<i8": 8, "<V2": 2}


def read_npy(data):
    """(descr, shape, bytes of each element in row-major order), by the description of the format alone."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    (length,) = struct.unpack("<H", data[8:10])
    assert (10 + length) % 64 == 0 and data[9 + length:10 + length] == b"\n"
    header = ast.literal_eval(data[10:10 + length].decode())
    assert sorted(header) == ["descr", "fortran_order", "shape"] and header["fortran_order"] is False
    size, data = BYTES[header["descr"]], data[10 + length:]
    elements = [data[i:i + size] for i in range(0, len(data), size)]
    return header["descr"], header["shape"], elements


def rows_of(shape, elements):
    return [elements[r * shape[1]:(r + 1) * shape[1]] for r in range(shape[0])]


def as_slice(text):
    return slice(*[int(x) if x else None for x in text.split(":")])


class ExportTest(CommandTest):
    def export(self, *arguments):
        answer = self.run_reshard("export", *arguments, cwd=self.dir)
        self.assertEqual((answer.code, answer.err), (0, ""))
        return answer

    def exported(self, key):
        self.export("/run", key, "-o", "/x.npy", "--force")
        return read_npy((self.dir / "x.npy").read_bytes())

    def test_help(self):
        self.assert_help("export")

    def test_a_whole_tensor_is_the_bytes_of_its_chunks(self):
        path = self.make("run")
        answer = self.export("/run", "model.w")
        self.assertEqual(answer.out, "model.w.npy: float32 (300, 1024), 1.17 MiB\n")
        descr, shape, elements = read_npy((self.dir / "model.w.npy").read_bytes())
        self.assertEqual((descr, shape), ("<f4", (300, 1024)))
        (tensor,) = self.run_reshard("ls", "--json", "/run", "model.w").json()["tensors"]
        rows = rows_of(shape, elements)
        for chunk in tensor["chunks"]:
            data = (path / chunk["file"]).read_bytes()[chunk["byte_offset"]:][:chunk["bytes"]]
            first, width = chunk["offset"][1], chunk["extent"][1]
            self.assertEqual(b"".join(x for row in rows for x in row[first:first + width]), data)

    def test_slices_are_those_of_python(self):
        self.make("run")
        _, shape, elements = self.exported("model.w")
        rows = rows_of(shape, elements)
        dice = random.Random(5)
        bound = lambda n: dice.choice(["", str(dice.randint(-n - 5, n + 5))])
        for _ in range(40):
            r, c = (f"{bound(n)}:{bound(n)}:{dice.choice(['', '1', '-1', '7', '-50'])}" for n in shape)
            want = [row[as_slice(c)] for row in rows[as_slice(r)]]
            _, got_shape, got = self.exported(f"model.w[{r}, {c}]")
            self.assertEqual(got, [x for row in want for x in row], (r, c))
            self.assertEqual(got_shape[0], len(want))

    def test_integers_drop_an_axis(self):
        self.make("run")
        _, shape, elements = self.exported("model.w")
        self.assertEqual(self.exported("model.w[-1]"), ("<f4", (1024,), elements[-1024:]))
        self.assertEqual(self.exported("model.w[..., 3]"), ("<f4", (300,), elements[3::1024]))
        self.assertEqual(self.exported("model.w[2, 3]"), ("<f4", (), [elements[2 * 1024 + 3]]))
        self.assertEqual(self.exported("opt.step")[:2], ("<i8", ()))
        self.assertEqual(self.exported("model.none"), ("<f4", (0, 5), []))
        self.assertEqual(self.exported("model.bias[5:]")[1], (2,))

    def test_bfloat16_is_raw(self):
        self.make("run")
        answer = self.export("/run", "model.emb[0]")
        self.assertIn("np.load(FILE).view(ml_dtypes.bfloat16)", answer.out)
        descr, shape, _ = read_npy((self.dir / "model.emb.npy").read_bytes())
        self.assertEqual((descr, shape), ("<V2", (32,)))

    def test_numpy_agrees(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("NumPy is not installed")
        self.make("run")
        self.export("/run", "model.w[::-7, 3:900:5]", "-o", "/x.npy")
        array = numpy.load(self.dir / "x.npy")
        self.export("/run", "model.w")
        numpy.testing.assert_array_equal(array, numpy.load(self.dir / "model.w.npy")[::-7, 3:900:5])

    def test_stdout(self):
        self.make("run")
        done = subprocess.run([RESHARD, "export", self.dir / "run", "model.w[0]", "-o", "-"], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(read_npy(done.stdout)[1], (1024,))
        with open("/dev/full", "w") as full:
            done = subprocess.run([RESHARD, "export", self.dir / "run", "model.w", "-o", "-"], stdout=full)
        self.assertEqual(done.returncode, 2)

    def test_an_existing_file_is_kept_without_force(self):
        self.make("run")
        (self.dir / "x.npy").write_text("mine")
        answer = self.assert_usage_error("export", "/run", "model.w", "-o", "/x.npy")
        self.assertIn("--force", answer.last_line)
        self.assertEqual((self.dir / "x.npy").read_text(), "mine")
        self.export("/run", "model.w", "-o", "/x.npy", "--force")
        self.assertEqual(sorted(os.listdir(self.dir)), ["run", "x.npy"])

    def test_wrong_keys_and_slices_say_what_is_right(self):
        self.make("run")
        for key, said in (("model.v", "did you mean 'model.w'?"), ("model.v[0]", "did you mean 'model.w'?"),
                          ("train.lr", "is no tensor but an object")):
            answer = self.run_reshard("export", "/run", key)
            self.assertEqual((answer.code, answer.out), (1, ""))
            self.assertIn(said, answer.err)
        answer = self.assert_usage_error("export", "/run", "model.w[300]")
        self.assertIn("tensor 'model.w' of shape (300, 1024): [300]: index 300 is out of bounds for axis 0", answer.err)
        self.assertIn("too many indices", self.assert_usage_error("export", "/run", "model.w[1,2,3]").err)
        self.assertIn("--memory", self.assert_usage_error("export", "/run", "model.w", "--memory", "1M").err)
        self.assertIn("is no size", self.assert_usage_error("export", "/run", "model.w", "--memory", "x").err)
        self.assertEqual(os.listdir(self.dir), ["run"])

    def test_damage_leaves_no_file(self):
        path = self.make("run")
        (tensor,) = self.run_reshard("ls", "--json", "/run", "model.w").json()["tensors"]
        chunk = tensor["chunks"][1]
        self.flip(path / chunk["file"], chunk["byte_offset"] + 5)
        answer = self.run_reshard("export", "/run", "model.w", "-o", "/x.npy")
        self.assertEqual(answer.code, 1)
        self.assertIn("checksum", answer.err)
        self.assertEqual(os.listdir(self.dir), ["run"])
        self.export("/run", "model.w[:, :512]", "-o", "/x.npy")  # the other half is whole

    def test_an_interrupt_ends_it(self):
        self.make("run")
        os.mkfifo(self.dir / "fifo")
        reader = os.open(self.dir / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # A pipe that nobody empties stops the export in the middle.
        running = subprocess.Popen([RESHARD, "export", "--memory", "4MiB", self.dir / "run", "model.w", "-o",
                                    self.dir / "fifo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)  # it is waiting in a write: the second one ends it
        self.assertEqual(running.wait(timeout=30), -signal.SIGINT)
        running.communicate()
        self.assertEqual(sorted(os.listdir(self.dir)), ["fifo", "run"])

    def test_an_interrupt_leaves_no_file(self):
        subprocess.run([MAKE_CHECKPOINT, self.dir / "large", "0", "0", "512"], check=True)
        running = subprocess.Popen([RESHARD, "export", "--memory", "4MiB", self.dir / "large", "w00", "-o",
                                    self.dir / "x.npy"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while running.poll() is None and not list(self.dir.glob(".x.npy.*")):
            time.sleep(0.0005)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        self.assertIn(running.returncode, (0, 2), err)  # 0: it was too quick
        if running.returncode == 2:
            self.assertIn("interrupted", err)
        self.assertEqual(sorted(os.listdir(self.dir)), ["large"] if running.returncode == 2 else ["large", "x.npy"])
