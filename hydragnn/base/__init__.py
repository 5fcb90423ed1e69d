"""Tools of every room: errors, files, settings, plug-ins, terminal, machine."""
