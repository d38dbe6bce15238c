"""The page: one HTML file that shows how far probabilities can be trusted, and works without a network."""

from calattn.report.page.document import Exhibit, build_document
from calattn.report.page.writing import page_html, write_html, write_page

__all__ = ["Exhibit", "build_document", "page_html", "write_html", "write_page"]
