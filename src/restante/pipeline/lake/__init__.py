"""The lake: Delta tables, committed without Spark, their log and their files (docs/decisions/lake.md)."""
