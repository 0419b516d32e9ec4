"""The Progressive Memory Transformer, one idea a file; pmt.py puts them together."""
