"""What a timeline, or a comparison, is written as: a module for each form, and sentences that they share. Pure."""
