# SPDX-License-Identifier: Apache-2.0
"""What scripts/coverage.sh says of the lines that tests reach, tried where it must fail; and the floors of this tree, none of which was
lowered without a word."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/coverage_floors.py"
sys.path.insert(0, str(SCRIPT.parent))
import coverage_floors  # noqa: E402 pylint: disable=wrong-import-position


class Floors:
    """A list of floors in a repository of its own, and what was counted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.path = folder / "tests/coverage.txt"
        self.path.parent.mkdir()
        self.git("init", "--quiet")
        self.count(a=(95, 100), b=(80, 100))

    def git(self, *words: str) -> None:
        """In that repository."""
        subprocess.run(["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True,
                       capture_output=True)

    def count(self, **lines: tuple[int, int]) -> None:
        """By folder: lines reached, and lines."""
        files = {f"{folder}/x.py": {"summary": {"covered_lines": reached, "num_statements": all_of_them}}
                 for folder, (reached, all_of_them) in lines.items()}
        (self.folder / "counts.json").write_text(json.dumps({"files": files}), encoding="utf-8")

    def write(self, *rows: str) -> None:
        """The list as somebody's editor leaves it."""
        self.path.write_text(coverage_floors.HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")

    def commit(self, *rows: str) -> None:
        """The same, and committed."""
        self.write(*rows)
        self.git("add", "tests")
        self.git("commit", "--quiet", "-m", "floors")

    def rows(self) -> list[str]:
        """Those of the file now."""
        return [row for row in self.path.read_text(encoding="utf-8").splitlines() if not row.startswith("#")]

    def judge(self, *words: str, folder: str = ".") -> tuple[int, str]:
        """The exit status and what is said."""
        done = subprocess.run([sys.executable, "-B", SCRIPT, *words, "tests/coverage.txt", self.folder / "counts.json"],
                              cwd=self.folder / folder, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(name="floors")
def a_list(tmp_path) -> Floors:
    return Floors(tmp_path)


@pytest.mark.parametrize("rows, code, said", [
    (("a 94", "b 79"), 0, "2 folders, 0 below their floor"),
    (("a 90", "b 79"), 0, "a: the floor 90 can be raised to 94"),
    (("a 96", "b 79"), 1, "BELOW: a is at 95.0 %, its floor is 96"),
    (("a 94",), 1, "BELOW: b has no floor; scripts/coverage.sh --raise gives it 79"),
    (("a 94", "b 79", "c 1"), 1, "BELOW: c has a floor and no lines"),
    (("a 94 because", "b 79"), 1, "only 'lowered: WHY' may stand"),
    (("a 94 lowered:", "b 79"), 1, "only 'lowered: WHY' may stand")])
def test_a_folder_is_held_to_its_floor(floors, rows, code, said):
    floors.commit(*rows)
    status, output = floors.judge()
    assert status == code and said in output, output


def test_raising_raises_and_lowers_nothing(floors):
    floors.commit("a 90", "b 85 lowered: less to do")
    status, output = floors.judge("--raise")
    assert status == 1 and "BELOW: b is at 80.0 %, its floor is 85" in output
    assert floors.rows() == ["a 94", "b 85 lowered: less to do"]


def test_raising_mends_no_floor_that_was_lowered(floors):
    floors.commit("a 97", "b 79")
    floors.write("a 50", "b 79")
    status, output = floors.judge("--raise")
    assert status == 1 and "LOWERED: a has the floor 94 and had 97" in output


LOWER = [(("a 94", "b 70"),), (("b 79",), ("a 94", "b 70")), (("a 94",), ("a 94", "b 70")), (("a 94", "b 70"), ("a 93", "b 70"))]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("later", LOWER)
def test_a_floor_that_was_ever_higher_is_refused(floors, later, commits):
    """Also where commits came after it, or the row or the file was away."""
    floors.commit("a 94", "b 79")
    for rows in later[:-1]:
        floors.commit(*rows)
    floors.git("rm", "--quiet", "tests/coverage.txt")
    floors.git("commit", "--quiet", "-m", "none")
    floors.path.parent.mkdir(exist_ok=True)
    (floors.commit if commits else floors.write)(*later[-1])
    status, output = floors.judge()
    assert status == 1 and "LOWERED: b has the floor 70 and had 79" in output and "lowered: WHY" in output, output


def test_a_reason_in_the_row_holds_once_and_for_as_long_as_it_is_lower(floors):
    floors.commit("a 94", "b 79")
    floors.write("a 94", "b 70 lowered: what was easy is gone")
    assert floors.judge()[0] == 0
    floors.commit("a 94", "b 70 lowered: what was easy is gone")
    assert floors.judge()[0] == 0
    floors.write("a 94", "b 60 lowered: what was easy is gone")
    assert floors.judge()[0] == 1, "lower with the same reason"
    floors.write("a 94", "b 60 lowered: more is gone")
    assert floors.judge()[0] == 0
    floors.write("a 94", "b 75")
    assert floors.judge()[0] == 1, "without a reason"
    floors.write("a 94", "b 79")
    assert floors.judge()[0] == 0


def test_without_gits_history_it_says_so_and_goes_on(floors, tmp_path):
    floors.commit("a 94", "b 79")
    floors.commit("a 94", "b 70")
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{tmp_path}", tmp_path / "shallow"], check=True, capture_output=True)
    status, output = floors.judge(folder="shallow")
    assert status == 0 and "a shallow clone: whether a floor was lowered is not judged" in output, output
    (tmp_path / ".git").rename(tmp_path / "gone")
    status, output = floors.judge()
    assert status == 0 and "whether a floor was lowered is not judged: " in output, output


def test_no_floor_of_this_tree_was_lowered_without_a_word():
    path = ROOT / "tests/coverage.txt"
    assert coverage_floors.lowered(coverage_floors.read_floors(path), coverage_floors.past_floors(path)) == []
