"""Textbook claims about serving language models, measured on the real engine."""
