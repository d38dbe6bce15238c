"""What was injected, survived and lost, from every fault test. `python -m tests.faults.tally FILE` writes the table of a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from calattn.files.atomic import atomic_write

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "faults.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table of make test-faults -->", "<!-- end of the table -->"
_TALLY, _FULL = "CALATTN_FAULTS_TALLY", "CALATTN_FAULTS_FULL"


def times(short: int, full: int) -> int:
    """How often to inject: few times in the suite, often in `make test-faults`."""
    return full if os.environ.get(_FULL) else short


def count(fault: str, into: str, *, injected: int, lost: int = 0) -> None:
    """Notes `injected` faults (such as "SIGKILL") into a thing (such as "training"); a test calls it before it fails."""
    if path := os.environ.get(_TALLY):
        line = json.dumps({"fault": fault, "into": into, "injected": injected, "lost": lost}) + "\n"
        with open(path, "ab") as file:  # one write: processes of pytest-xdist append to one file
            file.write(line.encode())


def summed(lines: Iterable[str]) -> list[dict[str, object]]:
    """One row for each fault and thing, in alphabetical order."""
    sums: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        row = json.loads(line)
        total = sums.setdefault((row["fault"], row["into"]), [0, 0])
        total[0] += row["injected"]
        total[1] += row["lost"]
    return [
        {"fault": fault, "into": into, "injected": injected, "survived": injected - lost, "lost": lost}
        for (fault, into), (injected, lost) in sorted(sums.items())
    ]


def table(rows: list[dict[str, object]]) -> str:
    columns = ("fault", "into", "injected", "survived", "lost")
    lines = [columns, ("---", "---", "--:", "--:", "--:"), *(tuple(row[name] for name in columns) for row in rows)]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def main(path: str) -> None:
    rows = summed(Path(path).read_text(encoding="utf-8").splitlines())
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    page = f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}"
    for target, text in ((KEPT, json.dumps(rows, indent=1) + "\n"), (PAGE, page)):
        with atomic_write(target) as partial:
            partial.write_text(text, encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1])
