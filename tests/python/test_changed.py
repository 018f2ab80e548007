"""Which files `./dev lint` looks at (.ci/changed): all that a push brought, in a bounded number of commits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT, run_command


class Clone:
    """A repository with .ci/changed and one file for each commit: 0.txt, 1.txt, ..."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "changed", folder / ".ci")
        self.git("init", "-q", "-b", "main")
        self.commits = 0

    def git(self, *arguments: str, **options: Any) -> str:
        done = run_command("git", *arguments, cwd=self.folder, **options)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def commit(self, count: int) -> None:
        """All of them by one process."""
        stream = "from refs/heads/main^0\n" if self.commits else ""
        for number in range(self.commits, self.commits + count):
            head = "commit refs/heads/main\ncommitter a <a@b> 0 +0000\ndata 0\n"
            stream = head + stream if number == self.commits else stream + head
            stream += f"M 100644 inline {number}.txt\ndata 4\ntext\n"
        self.git("fast-import", "--quiet", input=stream)
        self.git("reset", "-q", "--hard")
        self.commits += count

    def push(self) -> None:
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")

    def run(self, *arguments: str, base: str = "") -> Any:
        return run_command(".ci/changed", *arguments, cwd=self.folder, environment={"LINT_BASE": base})

    def changed(self, *arguments: str, base: str = "") -> list[int]:
        """The numbers of the text files that it names."""
        done = self.run(*arguments, base=base)
        assert done.returncode == 0, done.stderr
        return sorted(int(Path(line).stem) for line in done.stdout.splitlines() if line.endswith(".txt"))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path / "clone")
    made.commit(30)
    made.push()
    return made


def test_on_main_a_clone_that_never_linted_looks_at_the_last_20_commits(clone: Clone) -> None:
    assert clone.changed() == list(range(10, 30))


def test_on_main_what_came_since_lint_passed(clone: Clone) -> None:
    clone.git("update-ref", "refs/kvtrie/linted", "HEAD")
    assert clone.changed() == []
    clone.commit(25)
    clone.push()
    assert clone.changed() == list(range(30, 55))


def test_on_a_branch_what_differs_from_main(clone: Clone) -> None:
    clone.git("update-ref", "refs/kvtrie/linted", "HEAD~3")
    clone.commit(2)
    (clone.folder / "90.txt").write_text("nobody knows it yet")
    (clone.folder / "30.txt").write_text("changed since")
    (clone.folder / "31.txt").unlink()
    assert clone.changed() == [30, 90]


def test_a_ci_says_what_a_push_began_with(clone: Clone) -> None:
    assert clone.changed(base=clone.git("rev-parse", "HEAD~27")) == list(range(3, 30))
    refused = clone.run(base="0" * 40)
    assert refused.returncode != 0 and "LINT_BASE: got 0000" in refused.stderr


def test_a_short_history_is_looked_at_whole(tmp_path: Path) -> None:
    made = Clone(tmp_path / "clone")
    made.commit(3)
    made.push()
    assert made.changed() == [0, 1, 2]


def test_all(clone: Clone) -> None:
    assert clone.changed("--all") == list(range(30))
