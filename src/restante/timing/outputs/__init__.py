"""What a timeline, or a comparison, is written as."""
