"""Builds the tables for reports from the clean tables: decides which days are due, and builds them."""
