"""The Spark session, the Java that runs it, and small jobs (docs/decisions/small-jobs.md)."""
