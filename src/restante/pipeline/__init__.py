"""What the servers leave behind, in tables: from their databases and files, on Spark (docs/pipeline.md)."""
