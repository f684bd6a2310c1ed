"""What to show: tables for people, documents for programs."""
