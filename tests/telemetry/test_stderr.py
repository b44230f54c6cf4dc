"""A stream that nobody waits for, over a pipe that nobody reads."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from octavo.telemetry.stderr import UnblockedStream

F_SETPIPE_SZ = 1031
PIPE_BYTES = 4096


def test_what_fits_the_bound_comes_in_order_and_the_rest_is_counted() -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_BYTES)
    with os.fdopen(read) as reader, os.fdopen(write, "w") as writer:
        stream = UnblockedStream(writer, most=20_000)
        for number in range(1000):
            stream.write(f"line {number:04} {'x' * 90}\n")
        assert not stream.drain(0.05)
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(reader.read)
            assert stream.drain(10)
            stream.write("later\n")
            assert stream.drain(10)
            writer.close()
        text = reading.result()
    lines = text.splitlines()
    said = [int(line[5:9]) for line in lines if line == f"line {line[5:9]} {'x' * 90}"]
    lost = [
        int(line.split()[0])
        for line in lines
        if line.endswith(" lines were lost here, for stderr was not read.")
    ]
    assert said == sorted(set(said)) and 190 <= len(said) < 1000
    assert len(said) + sum(lost) == 1000
    assert lost and len(lines) == len(said) + len(lost) + lines.count("later") and "later" in lines


def test_a_reader_that_is_gone_is_nobody_s_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as writer:
        stream = UnblockedStream(writer)
        stream.write("for nobody\n")
        assert stream.drain(10)


def test_the_last_words_of_a_process_are_written() -> None:
    code = "import octavo.telemetry.stderr as s; s.unblock_stderr(); raise RuntimeError('the end')"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: the end\n")
