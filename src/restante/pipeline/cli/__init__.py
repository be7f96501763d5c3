"""The command line of the pipeline: commands.py has all of them; what a command needs is imported when it runs."""
