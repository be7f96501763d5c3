"""Reports of a day, a week or a month: what the built tables say, as a page, as CSV and JSON, and in a terminal."""
