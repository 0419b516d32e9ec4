"""Recordings in: files, folders, arrays."""
