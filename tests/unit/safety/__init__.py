"""Tests of the frame of the safety tests."""
