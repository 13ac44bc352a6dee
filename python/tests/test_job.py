import errno
import os
import subprocess

import pytest

from forebay.engine.job import Job, open_whole


def test_a_file_has_disk_blocks_for_all_its_states_before_one_is_written(tmp_path):
    path = tmp_path / "1.part"
    with path.open("wb") as file:
        file.write(b"kept")
        file.truncate(3 << 20)
    assert path.stat().st_blocks * 512 < 1 << 20
    fd, size = open_whole(str(path))
    os.close(fd)
    assert size == path.stat().st_size == 3 << 20
    assert path.stat().st_blocks * 512 >= size
    assert path.read_bytes()[:6] == b"kept\0\0"


def test_a_disk_that_is_too_small_for_them_shows_before_the_forward(tmp_path):
    if os.geteuid() != 0:
        pytest.fail("mounting a small tmpfs needs root: run the tests in a container with --cap-add SYS_ADMIN")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        with (disk / "1.part").open("wb") as file:
            file.truncate(3 << 20)
        said = []
        request = {"id": 7, "attempt": 1, "file": str(disk / "1.part"), "samples": []}
        assert Job.open(request, lambda message, last: said.append(message)) is None
        assert (said[0]["id"], said[0]["kind"], said[0]["errno"]) == (7, "io", errno.errorcode[errno.ENOSPC])
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
