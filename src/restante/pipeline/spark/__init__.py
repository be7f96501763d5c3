"""The Spark session, and the Java that runs it."""
