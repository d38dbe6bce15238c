import json

from tests.faults import tally


def test_counts_of_several_processes_add_up(tmp_path, monkeypatch):
    monkeypatch.setenv("CALATTN_FAULTS_TALLY", str(tmp_path / "tally.jsonl"))
    tally.count("SIGKILL", "training", injected=3, lost=1)
    tally.count("SIGKILL", "training", injected=2)
    tally.count("mutation", "npz", injected=5)
    rows = tally.summed((tmp_path / "tally.jsonl").read_text().splitlines())
    assert json.loads(json.dumps(rows)) == [
        {"fault": "SIGKILL", "into": "training", "injected": 5, "survived": 4, "lost": 1},
        {"fault": "mutation", "into": "npz", "injected": 5, "survived": 5, "lost": 0},
    ]


def test_few_in_the_suite_and_many_in_the_fault_run(monkeypatch):
    monkeypatch.delenv("CALATTN_FAULTS_FULL", raising=False)
    assert tally.times(3, 50) == 3
    monkeypatch.setenv("CALATTN_FAULTS_FULL", "1")
    assert tally.times(3, 50) == 50
