"""Graphs as members read them, from structures and objects of other packages."""
