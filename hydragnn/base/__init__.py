"""Tools of every room: errors, files, settings, plug-ins by name, the terminal, the machine."""
