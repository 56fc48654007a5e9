"""The table of causes and the page that shows it are one."""

from pathlib import Path

from worker_shim.criu import causes


def test_the_page_for_people_has_these_very_rows() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md"
    assert causes.as_markdown() in page.read_text(), "python -m worker_shim.criu.causes prints them"
