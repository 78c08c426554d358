"""The report of a fit: one HTML file that needs no network. `page.write_report` makes it."""
